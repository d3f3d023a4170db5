"""Masks of torch.nn.utils.prune: buffers that are alike on all ranks, and that are made anew between two epochs."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch.nn.utils import prune
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import taskd
from tests.trust.scene import Net, Scene, average_gradients

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
EPOCHS = 3
data = TensorDataset(torch.randn(56, 8), torch.randint(0, 3, (56,)))
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, batch_size=4, sampler=sampler)
model = Net()
prune.l1_unstructured(model.first, "weight", amount=0.1)
prune.random_unstructured(model.second, "weight", amount=0.1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
torch.manual_seed(100 + scene.rank)
session = taskd.session()
session.register(model=model, optimizer=optimizer)


def sparsity(layer):
    return float((layer.weight_mask == 0).sum()) / layer.weight_mask.numel()


for epoch in session.epochs(EPOCHS):
    sampler.set_epoch(epoch)
    model.train()
    for step in session.steps(loader):
        with step as (x, _):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x)
            scene.here(step, "forward")
            loss.backward()
            average_gradients(model)
            scene.here(step, "reduced")
            optimizer.step()
            scene.here(step, "updated")
        scene.here(step, "behind")
    if epoch < EPOCHS - 1:
        prune.l1_unstructured(model.first, "weight", amount=0.2)
        prune.ln_structured(model.second, "weight", amount=0.2, n=2, dim=1)
    if scene.rank == 0:
        print(f"epoch {epoch}: sparsity {sparsity(model.first):.2f} {sparsity(model.second):.2f}", flush=True)
    scene.here(SimpleNamespace(number=epoch, rehearsal=False), "between")
found = sparsity(model.first), sparsity(model.second)
prune.remove(model.first, "weight")
prune.remove(model.second, "weight")
scene.end(model, *found)
