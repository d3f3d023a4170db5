"""Errors in a step, of one rank and of all: --place says which, and where; --at in which step.

"once": it does not come again; "hook": in the backward; "twice": it comes again with the same step; "all": on all
ranks, again and again; "memory": there is none, once; "stop": the script's own way to its end; "flawed": the same in
a loop that hands a tensor on; "ddp": in the backward of DistributedDataParallel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

import taskd
from tests.trust.scene import Net, Scene, average_gradients, loss_of, say

scene = Scene()
kind, _, place = scene.args.place.partition(", ")
session = taskd.session()
torch.manual_seed(7)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
trained = DistributedDataParallel(model, bucket_cap_mb=0.0001) if kind == "ddp" else model
session.register(model=trained, optimizer=optimizer)
loader = scene.loader()
once = scene.args.folder / "raised"
raised = False  # what is counted is put back when a step is done again


class Stop(Exception):
    """The script's own."""


def here(step: Any, now: str) -> None:
    """An error, if this is the place."""
    global raised
    if (step.number, now) != (scene.args.at, place) or step.rehearsal:
        return
    if kind in ("all", "stop", "flawed") or (scene.rank == 1 and (kind == "twice" or not (raised or once.exists()))):
        raised = True
        if kind == "ddp":
            once.touch()
        say(f"raises {scene.rank} {step.number}")
        errors = {"memory": MemoryError("no more"), "stop": Stop("enough"), "flawed": Stop("enough")}
        raise errors.get(kind, ValueError(f"a bad sample of rank {scene.rank}"))


def in_hook(step: Any, _gradient: torch.Tensor) -> None:
    """Of a gradient."""
    here(step, "backward")


def train() -> None:
    """All of it."""
    hidden = torch.ones(8)
    for step in session.steps(loader, epochs=2):
        with step as x:
            optimizer.zero_grad()
            here(step, "forward")
            noise = 1 + 0.1 * torch.rand(())
            loss = loss_of(trained, x["x"] / 20) * noise
            if kind == "flawed":
                loss = loss * hidden.mean()
                hidden = 0.5 * hidden + 0.5 * x["x"][0] / 20
            here(step, "loss")
            if kind in ("hook", "ddp"):
                model.second.weight.register_hook(partial(in_hook, step))
            loss.backward()
            if kind != "ddp":
                average_gradients(model)
            here(step, "reduced")
            optimizer.step()
            here(step, "updated")


try:
    train()
except Stop:
    say(f"stopped {scene.rank}")
scene.end(model)
