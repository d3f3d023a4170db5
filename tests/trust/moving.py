"""Loops whose steps move a number of each rank by its own loss and compute with it. --place says where the number is,
and where rank 1 dies.

"criterion": in a loss function with a state, which a function of the script calls. "meter": in an object whose method
the loop calls, and the number is set anew. "previous": in a variable of the loop. "given": in an item of a dict that is
handed to a function. "shown": in a sum of losses that is only printed.
"""

from __future__ import annotations

from typing import Any

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

EPOCHS = 2
scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place


class Weighted:
    """A loss that follows its own average."""

    def __init__(self) -> None:
        self.alpha = 1.0

    def __call__(self, found: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(found, wanted)
        self.alpha = 0.9 * self.alpha + 0.1 * float(loss.detach())
        return loss * (1 + self.alpha)


class Last:
    """Remembers one number."""

    def __init__(self) -> None:
        self.value = 1.0

    def see(self, value: torch.Tensor) -> None:
        self.value = value.item()


def weighted(x: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = criterion(model(x), x)
    return found


def scaled(loss: torch.Tensor, state: dict[str, float]) -> torch.Tensor:
    found = loss / (0.1 + state["scale"])
    state["scale"] = loss.item()
    return found


torch.manual_seed(7)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
criterion, last, state = Weighted(), Last(), {"scale": 1.0}
session = taskd.session()
session.register(model=model, optimizer=optimizer)


def main() -> None:
    loader: Any = scene.loader()
    previous, total = 1.0, 0.0
    for _ in session.epochs(EPOCHS):
        for step in session.steps(loader):
            with step as batch:
                x = batch["x"] / 20
                scene.here(step, "forward")
                loss = weighted(x) if kind == "criterion" else loss_of(model, x)
                if kind == "meter":
                    loss = loss / (0.1 + last.value)
                    last.see(loss)
                elif kind == "previous":
                    loss = loss / (0.1 + previous)
                    previous = loss.item()
                elif kind == "given":
                    loss = scaled(loss, state)
                elif kind == "shown":
                    total += loss.item()
                    print(f"loss {total:.4f}")
                optimizer.zero_grad()
                loss.backward()
                scene.here(step, "backward")
                average_gradients(model)
                scene.here(step, "reduced")
                optimizer.step()
                scene.here(step, "updated")
    scene.end(model)


main()
