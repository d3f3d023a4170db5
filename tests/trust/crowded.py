"""A loop that reaches so many objects that nobody can look at all of them before each step.

Each step replaces a list of COUNT objects. The weight of the loss is made anew between two epochs, by a function that
remembers something. "array": in an array of numpy that its callback changes in place. "calm": nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy
import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

COUNT = 300
EPOCHS = 12
scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place
torch.manual_seed(7)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)


def crowd() -> list[SimpleNamespace]:
    """Return new objects, which hold what those before them held."""
    return [SimpleNamespace(number=number) for number in range(COUNT)]


class Board:
    """Calls its callbacks, and keeps the crowd."""

    def __init__(self) -> None:
        self.shares = numpy.ones(4)
        self.crowd = crowd()
        self.callbacks: list[Callable[[], None]] = [self.shrink]

    def shrink(self) -> None:
        """Change the shares in a way that no source shows."""
        if kind == "array":
            numpy.multiply(self.shares, 0.9, out=self.shares)

    def weigh(self) -> float:
        """Return the next weight."""
        for callback in self.callbacks:
            callback()
        return float(numpy.sum(self.shares))


board = Board()
for _ in session.epochs(EPOCHS):
    weight = session.between(board.weigh)
    for step in session.steps(scene.loader()):
        with step as batch:
            board.crowd = crowd()
            optimizer.zero_grad()
            scene.here(step, "forward")
            (loss_of(model, batch["x"] / 20) * weight).backward()
            average_gradients(model)
            scene.here(step, "reduced")
            optimizer.step()
            scene.here(step, "updated")
scene.end(model)
