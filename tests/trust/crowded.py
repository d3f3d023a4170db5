"""A loop that reaches so many objects that nobody can look at all of them before each step.

Each step replaces a list of COUNT objects. A callback, which no source shows, sets a weight for the next step.
"array": the weight is an array of numpy, which is changed in place. "calm": nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy
import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

COUNT = 2000
EPOCHS = 20
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
        self.weight = numpy.ones(4)
        self.crowd = crowd()
        self.callbacks: list[Callable[[float], None]] = [self.keep]

    def keep(self, loss: float) -> None:
        """Set the weight in a way that no source shows."""
        if kind == "array":
            numpy.multiply(self.weight, 0.9 + 0.01 * loss, out=self.weight)


board = Board()
for _ in session.epochs(EPOCHS):
    for step in session.steps(scene.loader()):
        with step as batch:
            board.crowd = crowd()
            optimizer.zero_grad()
            scene.here(step, "forward")
            loss = loss_of(model, batch["x"] / 20) * float(numpy.sum(board.weight))
            loss.backward()
            average_gradients(model)
            scene.here(step, "reduced")
            optimizer.step()
            scene.here(step, "updated")
            for callback in board.callbacks:
                callback(loss.item())
scene.end(model)
