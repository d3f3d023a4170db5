"""Ranks whose loops have different numbers of steps: rank 2 has one batch more, and no rank communicates in it.

Gradients are averaged in every other step, as in a training that accumulates them. So the ranks meet for the last time
before that batch. "list": the batches of an epoch are a list. "stream": an object that makes iterators, without a
length. "sampler": a loader with a batch sampler. "dead": rank 1 has the batch more, which is the one that dies.
"join": the steps communicate, and torch's Join lets the ranks end apart. "even": they stand in Join, too, but all ranks
have as many batches. "before": a Join without a step stands before the loops.
"long ...": so many epochs that some later state is proved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import taskd
from tests.trust.scene import BATCH, Net, Noise, Scene, loss_of

EVERY = 2
EVEN = 4


def count() -> int:
    """Return how many batches this rank has in an epoch."""
    return EVEN + (kind not in ("even", "before") and scene.rank == (1 if kind == "dead" else 2))


class Stream:
    """Makes iterators over a few batches."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for at in range(count()):
            yield torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(1000 * scene.rank + at))


class Order:
    """The numbers of the samples of each batch."""

    def __len__(self) -> int:
        return count()

    def __iter__(self) -> Iterator[list[int]]:
        for at in range(count()):
            yield [*range(at * BATCH, (at + 1) * BATCH)]


def loader() -> Any:
    """Return the loader of this kind."""
    scene.trace()
    if kind == "sampler":
        return DataLoader(Noise(2 * EVEN * BATCH), batch_sampler=Order())
    return Stream() if kind == "stream" else [*Stream()]


scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
epochs = 100 if kind.startswith("long ") else 3
kind = kind.removeprefix("long ")
session = taskd.session()
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session.register(model=model, optimizer=optimizer)
batches = loader()
if kind == "before":
    with Join([model]):
        pass
for _ in session.epochs(epochs):
    with Join([model]) if kind in ("join", "even") else contextlib.nullcontext():
        for at, step in enumerate(session.steps(batches)):
            updates = kind in ("join", "even", "before") or at % EVERY == EVERY - 1
            with step as batch:
                scene.here(step, "begin")
                with contextlib.nullcontext() if updates else model.no_sync():
                    loss_of(model, batch["x"] if kind == "sampler" else batch).backward()
                scene.here(step, "backward")
                if updates:
                    optimizer.step()
                    optimizer.zero_grad()
                scene.here(step, "end")
            scene.here(step, "behind")
scene.end(model)
