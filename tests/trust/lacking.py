"""A loop that keeps its losses where no repair looks: in a registry of the interpreter. All steps after the first need
them.

--place says where rank 1 dies, after "all" or "wrong". With "wrong", rank 1's script has an error in step 5 as well.
"""

from __future__ import annotations

import codecs

import torch

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of

scene = Scene()
kind, _, place = scene.args.place.partition(", ")
scene.args.place = place


def keep(number: int, loss: float) -> None:
    """Keep a loss as the name of a function that handles errors."""

    def kept(_: Exception) -> tuple[str, int]:
        return "", 0

    kept.__name__ = str(loss)
    codecs.register_error(f"step {number}", kept)


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps(scene.loader()):
    with step as batch:
        scene.here(step, "begun")
        optimizer.zero_grad()
        loss = loss_of(model, batch["x"])
        if step.number:
            before = codecs.lookup_error(f"step {step.number - 1}")
            loss = loss * (1 + float(before.__name__))  # type: ignore[attr-defined]
        if (kind, scene.rank, step.number) == ("wrong", 1, 5):
            raise ValueError("the script's own error")
        loss.backward()
        average_gradients(model)
        keep(step.number, loss.item())
        optimizer.step()
        scene.here(step, "updated")
scene.end(model)
