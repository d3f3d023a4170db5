"""Errors in a step, of one rank or of all ranks. --place says which error and where, --at says in which step.

"once": it does not come again. "hook": in the backward. "twice": it comes again when the step is done again. "all": on
all ranks, again and again. "late": the same, but rank 0 raises only when the step is done again. "memory": once, out of
memory. "stop": the script ends its loop by an error. "flawed": the same in a loop that hands a tensor on. "ddp": under
DistributedDataParallel. "amp": in half precision, with a scaler.
"loader": a sample cannot be read, once. "twice loader", "all loader": as above. "processes": the same in a process of
the loader. "staying": in a process that stays for the next epoch. "killed": that process dies instead. "stream": in a
loader that continues where it stopped when it is opened again. With "drawn", each sample is augmented at random, too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import taskd
from tests.trust.scene import BATCH, STEPS, Net, Noise, Scene, average_gradients, loss_of, say

scene = Scene()
kind, _, place = scene.args.place.partition(", ")
session = taskd.session()
torch.manual_seed(7)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
trained = DistributedDataParallel(model, bucket_cap_mb=0.0001) if kind == "ddp" else model
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3, enabled=kind == "amp")
session.register(model=trained, optimizer=optimizer, scaler=scaler if kind == "amp" else None)
once = scene.args.folder / "raised"
raised = False  # a flag and no count: counts are put back when a step is done again


class Stop(Exception):
    """An error of the script's own."""


class Files(Noise):
    """Samples that may be missing."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self._is_lost(index):
            if "killed" in kind:
                os.kill(os.getpid(), signal.SIGKILL)
            raise FileNotFoundError(f"no sample {index}")
        found = super().__getitem__(index)
        return found | {"x": found["x"] + torch.rand(())} if "drawn" in kind else found

    def _is_lost(self, index: int) -> bool:
        """Whether this sample is missing now. Samples come in order, and each rank has the same number in each step."""
        epoch, step = divmod(scene.args.at, STEPS)
        alone = kind == "all loader" or scene.rank == 1
        if not alone or index != (2 * step + scene.rank) * BATCH + 1 or scene.args.at < 0:
            return False
        count = scene.args.folder / f"asked {scene.rank}"
        with count.open("a+") as asked:
            asked.write("x")
            asked.seek(0)
            seen = len(asked.read())
        return seen == epoch + 1 or (kind in ("twice loader", "all loader") and seen > epoch)


class Stream:
    """A loader that continues where it stopped when it is opened again."""

    def __init__(self, batches: DataLoader[Any]) -> None:
        self._batches = chain.from_iterable(repeat(batches))
        self._length = len(batches)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._batches)


def loader() -> DataLoader[Any] | Stream:
    """Return the scene's loader, or one whose samples may be missing."""
    if not {"loader", "stream", "processes", "staying", "killed"}.intersection(kind.split()):
        return scene.loader()
    torch.manual_seed(100 + scene.rank)
    data = Files(STEPS * BATCH * 2)
    mine = [index for index in range(len(data)) if index // BATCH % 2 == scene.rank]
    processes = 0 if {"loader", "stream"}.intersection(kind.split()) else 2
    batches = DataLoader(data, BATCH, sampler=mine, num_workers=processes, persistent_workers="staying" in kind)
    return Stream(batches) if "stream" in kind else batches


def here(step: Any, now: str) -> None:
    """Raise an error, if this is the place."""
    global raised
    if (step.number, now) != (scene.args.at, place) or step.rehearsal:
        return
    if kind == "late" and _comes_late(step):
        return
    if kind in ("all", "stop", "flawed", "late") or (
        scene.rank == 1 and (kind == "twice" or not (raised or once.exists()))
    ):
        raised = True
        if kind == "ddp":
            once.touch()
        say(f"raises {scene.rank} {step.number}")
        errors = {"memory": torch.OutOfMemoryError("no more"), "stop": Stop("enough"), "flawed": Stop("enough")}
        errors["late"] = Stop("enough")
        raise errors.get(kind, ValueError(f"a bad sample of rank {scene.rank}"))


def _comes_late(step: Any) -> bool:
    """Whether this is rank 0 in its first try. Rank 1 waits for that try, and raises then."""
    there = scene.args.folder / "there"
    if scene.rank == 0:
        first = not there.exists()
        there.touch()
        return first
    while not there.exists():
        time.sleep(0.01)
    return False


def in_hook(step: Any, _gradient: torch.Tensor) -> None:
    """A hook of a gradient."""
    here(step, "backward")


def train() -> None:
    """Run the whole training."""
    hidden = torch.ones(1 << 18)  # too large to be kept for each step
    for step in session.steps(loader(), epochs=2):
        with step as x:
            optimizer.zero_grad()
            here(step, "forward")
            noise = 1 + 0.1 * torch.rand(())
            with torch.autocast("cpu", torch.bfloat16, enabled=kind == "amp"):
                loss = loss_of(trained, x["x"] / 20) * noise
            if kind == "flawed":
                loss = loss * hidden.mean()
                hidden = 0.5 * hidden + 0.5 * x["x"].mean() / 20
            here(step, "loss")
            hooks = kind in ("hook", "ddp")
            with model.second.weight.register_hook(partial(in_hook, step)) if hooks else contextlib.nullcontext():
                scaler.scale(loss).backward()
            if kind != "ddp":
                average_gradients(model)
            here(step, "reduced")
            scaler.step(optimizer)
            scaler.update()
            here(step, "updated")


try:
    train()
except Stop:
    say(f"stopped {scene.rank}")
scene.end(model)
