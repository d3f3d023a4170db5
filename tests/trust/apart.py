"""Ranks whose states differ, as the script wants it. The first word of --place is what differs, others who dies there.

"weights": each rank trains alone, and all average their weights after every third step. "moments": after each step, so
only the momentum differs. "rates": likewise without a momentum, and each rank has a rate of its own. "alike": nothing
differs.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

scene = Scene()
words, _, scene.args.place = scene.args.place.partition(", ")
kind, *victims = words.split()
scene.victims = tuple(map(int, victims))
rate = 0.01 * (1 + scene.rank) if kind == "rates" else 0.01
torch.manual_seed(7)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.0 if kind == "rates" else 0.9)


def average_weights(model: nn.Module) -> None:
    """Average the weights over all ranks."""
    with torch.no_grad():
        for parameter in model.parameters():
            dist.all_reduce(parameter)
            parameter.div_(dist.get_world_size())


session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps(scene.loader()):
    with step as batch:
        optimizer.zero_grad()
        scene.here(step, "forward")
        loss_of(model, batch["x"] / 20).backward()
        if kind == "alike":
            average_gradients(model)
        scene.here(step, "reduced")
        optimizer.step()
        if kind in ("moments", "rates") or (kind == "weights" and step.number % 3 == 2):
            average_weights(model)
        scene.here(step, "updated")
scene.end(model)
