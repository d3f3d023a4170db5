"""One training with many loaders. --kind says how its batches are drawn, by how many processes, and how it loops.

plain: without a session. one: one `steps(epochs=N)`. each: one loop per epoch of `session.epochs`. old: one loop per
epoch in the old shape. augment: samples that depend on draws of the process that loads them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler, Subset
from torch.utils.data.distributed import DistributedSampler

import taskd
from tests.trust.loops.stage import BATCH, EPOCHS, PER_EPOCH, Stage
from tests.trust.scene import loss_of

stage = Stage()
words = stage.args.kind.split()
random.seed(200 + stage.rank), numpy.random.seed(300 + stage.rank)


class Augmented(Dataset[tuple[int, torch.Tensor]]):
    """Adds noise to each sample, from all three generators or (own) from a generator of the dataset."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.own = numpy.random.default_rng(5) if "own" in words else None

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        number, x = self.data[index]
        if self.own is not None:
            return number, x + float(self.own.random())
        return number, x + torch.rand(8) + random.random() + float(numpy.random.random())


class Eager(Sampler[list[int]]):
    """Batches that are drawn when iter() is called, not when the first batch is wanted."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(BATCH * PER_EPOCH).reshape(-1, BATCH).tolist())

    def __len__(self) -> int:
        return PER_EPOCH


def loader_of(data: Any) -> DataLoader[Any]:
    """Return the loader that --kind describes."""
    processes = 0 if "inside" in words else 2
    more: dict[str, Any] = {"num_workers": processes, "persistent_workers": "persistent" in words}
    half = Subset(data, [*range(stage.rank, len(data), 2)])
    generator = torch.Generator().manual_seed(11)
    if "steps" in words:
        return DataLoader(data, batch_sampler=taskd.StepSampler(data, BATCH, seed=3), **more)
    if "distributed" in words:
        return DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, seed=3), **more)
    if "eager" in words:
        return DataLoader(half, batch_sampler=Eager(), **more)
    if "drawn" in words:
        sampler = RandomSampler(half, replacement=True, generator=generator)
        return DataLoader(half, batch_size=BATCH, sampler=sampler, **more)
    return DataLoader(half, BATCH, shuffle=True, generator=generator if "generator" in words else None, **more)


loader = loader_of(Augmented(stage.data) if "augment" in words else stage.data)
checks = DataLoader(stage.data, BATCH, num_workers=1, persistent_workers=True) if "evaluates" in words else None


def evaluate() -> float:
    """Return a score, from a loader whose processes stay. Its draw changes all later draws of the training."""
    assert checks is not None
    with torch.no_grad():
        return float(torch.rand(1)) + sum(float(loss_of(stage.model, x)) for _, x in checks)


def train(step: Any) -> None:
    """Run one step of a session, and what the loop does after it."""
    with step as batch:
        indices, x = batch
        if "evaluates" in words and "within" in words and step.number == PER_EPOCH + 1:
            evaluate()
            stage.here("evaluated", -1 if step.rehearsal else step.number)
        stage.train((indices, x.mul_(0.5) if "writes" in words else x), step.number, step.rehearsal)
    if not step.rehearsal:
        stage.here("after", step.number)


sampler: Any = loader.sampler if "distributed" in words else loader.batch_sampler
if "plain" in words:
    for epoch in range(EPOCHS):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        for at, (indices, x) in enumerate(loader):
            stage.train((indices, x), epoch * PER_EPOCH + at)
    stage.end()
    raise SystemExit
session = taskd.session()
session.register(model=stage.model, optimizer=stage.optimizer)
if "one" in words:
    for step in session.steps(loader, epochs=EPOCHS):
        train(step)
else:
    for epoch in session.epochs(EPOCHS) if "each" in words else range(EPOCHS):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        for step in session.steps(loader):
            train(step)
            if "leaves" in words and step.number % PER_EPOCH == 2:
                break
        stage.here("behind", epoch)
        if "evaluates" in words and "within" not in words:
            if "old" in words:
                evaluate()
            else:
                session.between(evaluate)
            stage.here("evaluated", epoch)
stage.end()
