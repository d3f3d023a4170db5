"""Loaders of a script that continue where they stopped when they are opened again, so each epoch has new batches.

"cursor": the loader holds a number. "turns": it counts how often it was opened; "opened", "state", "times": a flag, a
text or a list says that; "began": the loss depends on when. "itself": it holds an iterator. "sampler", "batches": the
sampler or the batch sampler counts its passes; with "after" it does so at the end. "dataset": the dataset counts how
often it was asked; with "processes" each loader process counts for itself. "lazy": its first sample sets a scale.
"iterable": an IterableDataset that continues. "global": a batch depends on a list of the module. "shared": the dataset
holds the script's options, in which the script counts its steps. With "loops" there is one loop per epoch, else one for
all. With "own" the step writes into its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

import taskd
from tests.trust.scene import BATCH, Net, Scene, average_gradients, loss_of

EPOCHS = 3
PER_EPOCH = 5
asked: list[int] = []


def batch_of(number: int) -> torch.Tensor:
    """Return the batch with this number. It is the same wherever it is made."""
    return torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(1000 * scene.rank + number))


class Cursor:
    """Counts its batches, and continues from that number."""

    def __init__(self) -> None:
        self.at = 0

    def __len__(self) -> int:
        return PER_EPOCH

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(PER_EPOCH):
            self.at += 1
            yield batch_of(self.at)


class Turns:
    """Counts how often it was opened, and has other batches each time."""

    def __init__(self) -> None:
        self.turns, self.opened, self.state = 0, False, "new"
        self.began, self.times = 0, list[int]()

    def __len__(self) -> int:
        return PER_EPOCH

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.turns += "turns" in kind
        first = 100 * self.turns + 50 * self.opened + 20 * (self.state == "old") + 7 * (len(self.times) == 2)
        if "times" in kind:
            self.times.append(1)
        self.began = session.updates if "began" in kind else 0
        self.opened, self.state = "opened" in kind, "old" if "state" in kind else "new"
        for at in range(PER_EPOCH):
            yield batch_of(first + at)


class Itself:
    """Holds an iterator, and continues with it."""

    def __init__(self) -> None:
        self._batches = map(batch_of, count())

    def __len__(self) -> int:
        return PER_EPOCH

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(PER_EPOCH):
            yield next(self._batches)


class Passes(Sampler[int]):
    """Has another order in each pass."""

    def __init__(self) -> None:
        self.passes = 0

    def __len__(self) -> int:
        return PER_EPOCH

    def __iter__(self) -> Iterator[int]:
        self.passes += "after" not in kind
        yield from torch.randperm(64, generator=torch.Generator().manual_seed(self.passes)).tolist()[:PER_EPOCH]
        self.passes += "after" in kind


class PassesOfBatches(Sampler[list[int]]):
    """Has batches of one sample, in another order in each pass."""

    def __init__(self) -> None:
        self.order = Passes()

    def __len__(self) -> int:
        return PER_EPOCH

    def __iter__(self) -> Iterator[list[int]]:
        yield from ([index] for index in self.order)


class Options:
    """The options of the script."""

    step = 0


class Data(Dataset[torch.Tensor]):
    """Samples that depend on their number, and on what was asked before where `kind` says so."""

    def __init__(self, counts: bool) -> None:
        self.counts, self.asked, self.options = counts, 0, options
        self.scale: float | None = None

    def __len__(self) -> int:
        return 64 if {"sampler", "batches"}.intersection(kind) else 2 * PER_EPOCH

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += self.counts
        if "lazy" in kind and self.scale is None:
            self.scale = 2.0
        if "global" in kind:
            asked.append(index)
        return batch_of(index) * (self.scale or 1.0) + self.asked / 10 + len(asked) / 10


class Streamed(Cursor, IterableDataset[torch.Tensor]):
    """A Cursor that is an IterableDataset."""


def loader() -> Any:
    """Return the loader that --place names."""
    scene.trace()
    if "cursor" in kind:
        return Cursor()
    if {"turns", "opened", "state", "times", "began"}.intersection(kind):
        return Turns()
    if "itself" in kind:
        return Itself()
    if "iterable" in kind:
        return DataLoader(Streamed(), None)
    if "batches" in kind:
        return DataLoader(Data(False), batch_sampler=PassesOfBatches())
    if "sampler" in kind:
        return DataLoader(Data(False), 1, sampler=Passes())
    data = Data("dataset" in kind and "global" not in kind)
    processes = 2 if "processes" in kind else 0
    return DataLoader(data, batch_sampler=taskd.StepSampler(data, 1, seed=3), num_workers=processes)


def train(step: Any, x: torch.Tensor) -> None:
    """Train one step."""
    scene.here(step, "begin")
    if "own" in kind:
        x.mul_(1.5)
    options.step += 1
    optimizer.zero_grad()
    (loss_of(model, x.view(BATCH, 8)) * (1 + options.step / 10 + getattr(batches, "began", 0))).backward()
    scene.here(step, "backward")
    average_gradients(model)
    optimizer.step()
    scene.here(step, "end")


scene = Scene()
options = Options()
options.step = 0
kind = scene.args.place.partition(",")[0].split()
scene.args.place = scene.args.place.partition(", ")[2]
session = taskd.session()
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
session.register(model=model, optimizer=optimizer)
batches = loader()
if "loops" in kind:
    for _ in range(EPOCHS):
        for step in session.steps(batches):
            with step as x:
                train(step, x)
else:
    for step in session.steps(batches, epochs=EPOCHS):
        with step as x:
            train(step, x)
scene.end(model)
