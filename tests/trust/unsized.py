"""Loaders without a length: a loop of steps ends where its loader does, and nobody knows that before.

"own": a class of the script makes the iterators. "stream": an IterableDataset. "processes": two processes load it.
"drawn": it draws at random, and its length, too. "counted": it counts its passes, and each is longer than the last one.
"ends": it counts the ends of its passes. "batches": a batch sampler without a length; "staying": with processes that
stay. "written": the step writes into its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import taskd
from tests.trust.scene import BATCH, Net, Noise, Scene, loss_of

EPOCHS = 3
PER_EPOCH = 4


def rows_of(number: int) -> torch.Tensor:
    """Return some rows. They are the same wherever they are made."""
    return torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(1000 * scene.rank + number))


class Own:
    """Makes iterators over a few batches."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        for at in range(PER_EPOCH):
            yield rows_of(at)
        scene.here(SimpleNamespace(number=session.updates, rehearsal=False), "over")


class Counted:
    """Counts its passes, and makes each one longer."""

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.passes += 1
        for at in range(PER_EPOCH + self.passes):
            yield rows_of(at)


class Ends:
    """Counts the ends of its passes, and makes each one longer."""

    def __init__(self) -> None:
        self.ends = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for at in range(PER_EPOCH + self.ends):
            yield rows_of(at)
        self.ends += 1


class Stream(IterableDataset[torch.Tensor]):
    """A stream of rows. Each process of a loader has a part of them."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        count = PER_EPOCH
        if kind == "drawn":
            count += int(torch.randint(0, 3, ()).item())  # alike on all ranks
        info = get_worker_info()
        first, every = (0, 1) if info is None else (info.id, info.num_workers)
        for at in range(first, count, every):
            yield rows_of(at) + (torch.rand(()) if kind == "drawn" else 0.0)


class Order:
    """The numbers of the samples of each batch."""

    def __iter__(self) -> Iterator[list[int]]:
        for at in range(PER_EPOCH):
            yield [*range(at * BATCH, (at + 1) * BATCH)]


def loader() -> Any:
    """Return the loader of this kind."""
    scene.trace()
    if kind in ("own", "written"):
        return Own()
    if kind in ("counted", "ends"):
        return Counted() if kind == "counted" else Ends()
    if kind == "batches":
        return DataLoader(Noise(2 * PER_EPOCH * BATCH), batch_sampler=Order())
    if kind == "staying":
        return DataLoader(Noise(2 * PER_EPOCH * BATCH), batch_sampler=Order(), num_workers=2, persistent_workers=True)
    return DataLoader(Stream(), batch_size=None, num_workers=2 if kind == "processes" else 0)


scene = Scene()
kind, _, scene.args.place = scene.args.place.partition(", ")
session = taskd.session()
model = DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session.register(model=model, optimizer=optimizer)
batches = loader()
for _ in session.epochs(EPOCHS):
    for step in session.steps(batches):
        with step as batch:
            rows = batch["x"] if kind in ("batches", "staying") else batch
            scene.here(step, "begin")
            if kind == "written":
                rows.mul_(1.5)
            optimizer.zero_grad()
            loss_of(model, rows).backward()
            scene.here(step, "backward")
            optimizer.step()
            scene.here(step, "end")
        scene.here(step, "behind")
scene.end(model)
