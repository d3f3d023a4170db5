"""Code that follows `with step:` in the loop's body, and that changes what this rank has. --place says what it changes,
and where rank 1 dies.

"dict": numbers in a dict that is registered as local, with which steps compute. "module": an attribute of a module.
"rate": a learning rate that is set by hand. "norm": a validation that forgets eval(), so that batch norm learns from
it. "last": it leaves the loop after a number of steps that it counts itself. Between two epochs: "picture": a forward
in training mode changes the buffers of a second model. "precise": the averages of batch norm are computed anew.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

import taskd
from tests.trust.scene import STEPS, Scene, average_gradients

EPOCHS = 3
scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place


class Normed(nn.Module):
    """A layer, a batch norm, a layer, and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)
        self.temperature = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(torch.relu(self.norm(self.first(x))) * self.temperature)
        return found


model = Normed()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
tracker = {"baseline": 1.0}
session = taskd.session()
session.register(model=model, optimizer=optimizer, local={"tracker": tracker})
held_out = torch.randn(2, 8, 8, generator=torch.Generator().manual_seed(5))
loader = scene.loader()
counted = 0


def one_step(step: Any) -> float:
    """Train, and return the loss. A step that is given up has none."""
    loss = torch.zeros(())
    with step as batch:
        optimizer.zero_grad()
        loss = (model(batch["x"]) - batch["x"]).pow(2).mean()
        scene.here(step, "forward")
        (loss / (0.1 + tracker["baseline"])).backward()
        average_gradients(model)
        scene.here(step, "reduced")
        optimizer.step()
        scene.here(step, "updated")
    return loss.item()


def follow(step: Any, loss: float) -> None:
    """Do what follows a step."""
    if step.rehearsal:
        return
    if kind == "dict":
        tracker["baseline"] = 0.9 * tracker["baseline"] + 0.1 * loss
    elif kind == "module":
        model.temperature *= 0.97
    elif kind == "rate":
        for group in optimizer.param_groups:
            group["lr"] *= 0.95
    elif kind == "norm" and step.number % 2:
        with torch.no_grad():
            model(held_out[0])
    scene.here(step, "behind")


def between(epoch: int) -> None:
    """Do what stands between two epochs."""
    if kind == "picture":
        with torch.no_grad():
            model(held_out[1])
    elif kind == "precise":
        model.norm.reset_running_stats()
        with torch.no_grad():
            for batch in held_out:
                model(batch)
    scene.here(SimpleNamespace(number=epoch, rehearsal=False), "between")


for epoch in session.epochs(EPOCHS):
    for step in session.steps(loader):
        follow(step, one_step(step))
        counted += 1
        if kind == "last" and counted >= 2 * STEPS - 2:
            break
    if kind == "last" and counted >= 2 * STEPS - 2:
        break
    between(epoch)
scene.end(model, model.temperature, tracker["baseline"], optimizer.param_groups[0]["lr"])
