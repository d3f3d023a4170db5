"""Steps that the script does again by itself, after an error that it has caught: it lowers the scale of its loss.

"scale": a variable of the loop. "object": an attribute of an object. "rate": it lowers the learning rate. "behind": it
clears the gradients behind the update, so those of a failed attempt are added to the next one's. Steps 2 and 5 overflow
on all ranks as long as the scale is too large.
"""

from __future__ import annotations

import torch
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.trust.scene import Net, Scene, loss_of, say

LIMITS = {2: 2.0, 5: 0.5}


class Scaler:
    """Holds the scale."""

    def __init__(self) -> None:
        self.scale = 8.0


scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
session = taskd.session()
model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=8.0 if kind == "rate" else 0.01)
session.register(model=model, optimizer=optimizer)


def train_with_a_variable() -> float:
    """Train, and return the last scale."""
    scale = 8.0
    for step in session.steps(scene.loader()):
        try:
            with step as batch:
                scene.here(step, f"begin {scale:g}")
                optimizer.zero_grad()
                (loss_of(model, batch["x"]) * scale).backward()
                scene.here(step, f"backward {scale:g}")
                if scale > LIMITS.get(step.number, scale):
                    raise OverflowError(f"{scale} is too large")
                optimizer.step()
                scene.here(step, "end")
        except OverflowError:
            scale /= 2
    return scale


def train_and_clear_behind() -> float:
    """Train, clear the gradients behind the update, and return the last scale."""
    scale = 8.0
    for step in session.steps(scene.loader()):
        try:
            with step as batch:
                scene.here(step, f"begin {scale:g}")
                (loss_of(model, batch["x"]) * scale).backward()
                scene.here(step, f"backward {scale:g}")
                if scale > LIMITS.get(step.number, scale):
                    raise OverflowError(f"{scale} is too large")
                optimizer.step()
                optimizer.zero_grad()
                scene.here(step, "end")
        except OverflowError:
            scale /= 2
    return scale


def train_with_an_object() -> float:
    """Train, and return the last scale."""
    scaler = Scaler()
    for step in session.steps(scene.loader()):
        try:
            with step as batch:
                scene.here(step, f"begin {scaler.scale:g}")
                optimizer.zero_grad()
                (loss_of(model, batch["x"]) * scaler.scale).backward()
                scene.here(step, f"backward {scaler.scale:g}")
                if scaler.scale > LIMITS.get(step.number, scaler.scale):
                    raise OverflowError(f"{scaler.scale} is too large")
                optimizer.step()
                scene.here(step, "end")
        except OverflowError:
            scaler.scale /= 2
    return scaler.scale


def train_with_a_rate() -> float:
    """Train with a learning rate instead, and return the last one."""
    for step in session.steps(scene.loader()):
        try:
            with step as batch:
                rate = optimizer.param_groups[0]["lr"]
                scene.here(step, f"begin {rate:g}")
                optimizer.zero_grad()
                (loss_of(model, batch["x"]) / 1000).backward()
                scene.here(step, f"backward {rate:g}")
                if rate > LIMITS.get(step.number, rate):
                    raise OverflowError(f"{rate} is too large")
                optimizer.step()
                scene.here(step, "end")
        except OverflowError:
            for group in optimizer.param_groups:
                group["lr"] /= 2
    return float(optimizer.param_groups[0]["lr"])


TRAIN = {
    "scale": train_with_a_variable,
    "object": train_with_an_object,
    "rate": train_with_a_rate,
    "behind": train_and_clear_behind,
}
say(f"scale {TRAIN[kind]()}")
scene.end(model)
