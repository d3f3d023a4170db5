"""Layers that are sliced over all ranks (torch's tensor parallelism): a rank has columns of one and rows of the next.

All ranks get the same batches. The norm between them is on every rank, and no DistributedDataParallel keeps it alike.
"plain": slices alone. "both": `fully_shard` over two ranks, and slices over the other two.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils.data import DataLoader

import taskd
from tests.trust.scene import BATCH, STEPS, Noise, Scene

scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")


class Model(nn.Module):
    """A layer by columns, a layer by rows, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.rises, self.falls, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.norm(x + self.falls(torch.tanh(self.rises(x))))
        return found


session = taskd.session()
torch.manual_seed(7)
if kind == "both":
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shards", "slices"))
    slices = mesh["slices"]
else:
    slices = init_device_mesh("cpu", (4,))
model = parallelize_module(Model(), slices, {"rises": ColwiseParallel(), "falls": RowwiseParallel()})
if kind == "both":
    fully_shard(model, mesh=mesh["shards"])
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session.register(model=model, optimizer=optimizer)
data = Noise(2 * STEPS * BATCH)
scene.trace()
for step in session.steps(DataLoader(data, BATCH)):
    with step as batch:
        x = batch["x"] / 20
        scene.here(step, "forward")
        loss = nn.functional.mse_loss(model(x), x.roll(1, 1))
        scene.here(step, "loss")
        loss.backward()
        scene.here(step, "reduced")
        optimizer.step()
        optimizer.zero_grad()
        scene.here(step, "updated")
    scene.here(step, "behind")
scene.end(*[one.full_tensor() if isinstance(one, DTensor) else one for one in model.parameters()])
