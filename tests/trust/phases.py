"""Trainings in several loops that wrap the model in DistributedDataParallel again for each. --place says which, and
where rank 1 dies.

"phases": first only the head is trained, then all, with another optimizer. "folds": another model for each fold of the
data. "objects": the ranks tell each other what they have before each phase.
"""

from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

import taskd
from tests.trust.scene import Net, Scene

FOLDS = 3
scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")


class Classifier(nn.Module):
    """A trained part with buffers, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.norm, self.head = Net(), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.norm(self.backbone(x)))
        return found


data = TensorDataset(torch.randn(84, 8), torch.randint(0, 3, (84,)))
session = taskd.session()


def train(net: nn.Module, indices: list[int], epochs: int, optimizer: torch.optim.Optimizer) -> None:
    """Train one phase, or on one fold."""
    sampler = DistributedSampler(Subset(data, indices), seed=1)
    loader = DataLoader(sampler.dataset, batch_size=4, sampler=sampler)
    model = DistributedDataParallel(net)
    model.train()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for step in session.steps(loader):
            with step as (x, y):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                scene.here(step, "forward")
                loss.backward()
                scene.here(step, "reduced")
                optimizer.step()
                scene.here(step, "updated")


def meet(phase: int) -> None:
    """Do what stands between two phases."""
    if kind == "objects":
        told: list[object] = [None] * dist.get_world_size()
        dist.all_gather_object(told, {"phase": phase, "rank": scene.rank})
        assert None not in told
    scene.here(SimpleNamespace(number=phase, rehearsal=False), "between")


def phases() -> None:
    """Train the head, then all."""
    net = Classifier()
    torch.manual_seed(100 + scene.rank)
    session.register(model=net)
    for parameter in net.backbone.parameters():
        parameter.requires_grad = False
    head = torch.optim.AdamW(net.head.parameters(), lr=0.01)
    session.register(optimizer={"head": head})
    scene.trace()
    train(net, [*range(len(data))], 1, head)
    meet(0)
    for parameter in net.backbone.parameters():
        parameter.requires_grad = True
    parts = [{"params": net.backbone.parameters(), "lr": 1e-3}, {"params": net.head.parameters(), "lr": 5e-3}]
    everything = torch.optim.AdamW(parts)
    session.register(optimizer={"everything": everything})
    train(net, [*range(len(data))], 2, everything)
    scene.end(net)


def folds() -> None:
    """Train a model for each fold, on the other folds."""
    nets = list[nn.Module]()
    for fold in range(FOLDS):
        torch.manual_seed(fold)
        net = Classifier()
        torch.manual_seed(100 + scene.rank)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        session.register(model={f"fold{fold}": net}, optimizer={f"fold{fold}": optimizer})
        train(net, [at for at in range(len(data)) if at % FOLDS != fold], 1, optimizer)
        nets.append(net)
        meet(fold)
    scene.end(*nets)


if kind == "folds":
    folds()
else:
    phases()
