"""Models of which each rank has a part. --place says how it is divided, and where rank 1 dies. There are four ranks.

"pipeline": ranks 0 and 2 have the first half, ranks 1 and 3 the second; they exchange activations and gradients.
"tensor": each rank has half of each layer, and every forward sums over both halves. "scaled": the same, with a scaler
that skips steps. "alone": like "tensor", but the script reduces gradients itself: nobody knows who has the same part.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import taskd
from tests.trust.scene import BATCH, STEPS, Noise, Scene

scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place
column, row = scene.rank % 2, scene.rank // 2
replicas = [dist.new_group([0, 2]), dist.new_group([1, 3])][column]
halves = [dist.new_group([0, 1]), dist.new_group([2, 3])][row]


class Summed(torch.autograd.Function):
    """Sums over the ranks that have the halves of a layer. The gradient of the sum is the same on all of them."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
        found = value.clone()
        dist.all_reduce(found, group=halves)
        return found

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class Half(nn.Module):
    """Half of the hidden units of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.rises, self.falls = nn.Linear(8, 8), nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = Summed.apply(self.falls(torch.tanh(self.rises(x))))
        return found


class Stage(nn.Module):
    """One of the two layers of the pipeline."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(8, 8), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(torch.tanh(self.layer(x)))


session = taskd.session()
torch.manual_seed(7 + column)
model = Stage() if kind == "pipeline" else Half()
shared = model if kind == "alone" else DistributedDataParallel(model, process_group=replicas, bucket_cap_mb=0.0001)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=2, enabled=kind == "scaled")
session.register(model=shared, optimizer=optimizer, scaler=scaler if kind == "scaled" else None)
data = Noise(2 * STEPS * BATCH)
samples = [at for at in range(len(data)) if at // BATCH % 2 == row]
torch.manual_seed(100 + scene.rank)
scene.trace()

for step in session.steps(DataLoader(data, BATCH, sampler=samples), epochs=2):
    with step as batch:
        x = batch["x"] / 20
        optimizer.zero_grad()
        scene.here(step, "forward")
        if kind != "pipeline":
            loss = nn.functional.mse_loss(shared(x), x) * (1 + 0.1 * torch.rand(()) * (kind == "scaled"))
            if kind == "scaled" and (step.number, column) == (4, 1):
                loss = loss * float("inf")  # this half skips the step, and the other half does not
            scene.here(step, "loss")
            scaler.scale(loss).backward()
        elif column == 0:
            out = shared(x)
            dist.send(out.detach(), scene.rank + 1)
            gradient = torch.empty_like(out)
            dist.recv(gradient, scene.rank + 1)
            out.backward(gradient)
        else:
            given = torch.empty_like(x)
            dist.recv(given, scene.rank - 1)
            given.requires_grad_()
            loss = nn.functional.mse_loss(shared(given), x)
            scene.here(step, "loss")
            loss.backward()
            dist.send(given.grad, scene.rank - 1)
        if kind == "alone":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad, group=replicas)
        scene.here(step, "reduced")
        scaler.step(optimizer)
        scaler.update()
        scene.here(step, "updated")
    scene.here(step, "behind")
scene.end(model)
