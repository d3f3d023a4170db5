"""Tests what loaders draw: a newcomer gets the batches and generator states that the dead rank would have had.

It runs in one process. A loader is run through once, and for each batch the test notes what a record would hold. Then a
newcomer goes on at each place, once before its batch and once after it. Whole jobs are in tests/trust/loops.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, Sampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler

from taskd.state import rng
from taskd.worker.feed import AnotherBatch, Feed
from taskd.worker.loaders import DRAWS, EAGER, LEFT, OF_SCRIPT, OWN_WAY, SHARED, STREAM, Loaders
from taskd.worker.sampler import StepSampler

BATCH, PER_EPOCH, EPOCHS = 2, 4, 3
SAMPLES = BATCH * PER_EPOCH
STEPS = PER_EPOCH * EPOCHS


class Data(Dataset[tuple[float, ...]]):
    """Numbered samples. With `draws`, the process that loads them also draws random numbers or counts."""

    def __init__(self, draws: str = "") -> None:
        self.draws, self.asked = draws, [0]
        self.own = [numpy.random.default_rng(3), random.Random(4), torch.Generator()] if draws == "own" else []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[float, ...]:
        if self.draws == "torch":
            return index, torch.rand(1).item()
        if self.draws == "all":
            return index, torch.rand(1).item(), random.random(), float(numpy.random.random())
        if self.draws == "counts":
            self.asked[0] += 1
            return index, self.asked[0]
        if self.own:
            array, plain, tensor = self.own
            return index, float(array.random()), plain.random(), torch.rand(1, generator=tensor).item()
        return (index,)


class Eager(Sampler[list[int]]):
    """A batch sampler that draws when iter() is called."""

    def __iter__(self) -> Iterator[list[int]]:
        return iter(torch.randperm(SAMPLES).reshape(-1, BATCH).tolist())

    def __len__(self) -> int:
        return PER_EPOCH


class Passes(Sampler[int]):
    """A sampler that counts its passes, before or after each, and has another order in each pass."""

    def __init__(self, behind: bool) -> None:
        self.behind, self.passes = behind, 0

    def __iter__(self) -> Iterator[int]:
        self.passes += not self.behind
        yield from torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(self.passes)).tolist()
        self.passes += self.behind

    def __len__(self) -> int:
        return SAMPLES


class Stream(IterableDataset[float]):
    """An iterable dataset that draws, and has a length."""

    def __len__(self) -> int:
        return SAMPLES

    def __iter__(self) -> Iterator[float]:
        return (torch.rand(1).item() for _ in range(SAMPLES))


def loader(order: str, draws: str, **more: Any) -> DataLoader[Any]:
    """Return a loader with this kind of order and this kind of draws."""
    data, own = Data(draws), torch.Generator().manual_seed(5)
    orders: dict[str, Callable[[], dict[str, Any]]] = {
        "shuffle": lambda: {"batch_size": BATCH, "shuffle": True},
        "generator": lambda: {"batch_size": BATCH, "shuffle": True, "generator": own},
        "drawn": lambda: {"batch_size": BATCH, "sampler": RandomSampler(data, replacement=True, generator=own)},
        "weighted": lambda: {"batch_size": BATCH, "sampler": WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)},
        "distributed": lambda: {"batch_size": BATCH, "sampler": DistributedSampler(data, 1, 0)},
        "passes": lambda: {"batch_size": BATCH, "sampler": Passes(False)},
        "behind": lambda: {"batch_size": BATCH, "sampler": Passes(True)},
        "eager": lambda: {"batch_sampler": Eager()},
        "steps": lambda: {"batch_sampler": StepSampler(data, BATCH, 0, 1)},
    }
    return DataLoader(data, **orders[order](), **more)


PROCESSES: dict[str, dict[str, Any]] = {
    "inside": {},
    "processes": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True},
    "ahead": {"num_workers": 3, "persistent_workers": True, "prefetch_factor": 1},
}


@dataclass
class Place:
    """What a record holds about one batch."""

    batch: list[list[float]]
    before: bytes
    after: bytes
    known: bytes


def plain(batch: Any) -> list[list[float]]:
    """Return the numbers in a batch, as they are now."""
    return [column.tolist() for column in batch]


def take(feed: Feed, loaders: Loaders, number: int) -> Place:
    """Take one batch, then draw as the training does after it."""
    batch = plain(feed.batch(number))
    known = loaders.pack()
    torch.rand(1), random.random()
    return Place(batch, feed.before, rng.capture(), known)


def run(order: str, draws: str, more: dict[str, Any]) -> list[Place]:
    """Do the run in which no rank dies. Returns what a record holds at each batch."""
    torch.manual_seed(1), random.seed(2), numpy.random.seed(3)
    loaders = Loaders(True)
    feed = Feed(loader(order, draws, **more), EPOCHS, loaders)
    places = [take(feed, loaders, number) for number in range(STEPS)]
    assert not loaders.flaw()
    feed.close()
    return places


def go_on(source: DataLoader[Any], places: list[Place], number: int, generators: bytes, known: bytes) -> None:
    """Let a newcomer take the next few batches. They go at least beyond the end of an epoch."""
    torch.manual_seed(77), random.seed(77)  # the newcomer's generators start from some other state
    loaders = Loaders(True)
    feed = Feed(source, EPOCHS, loaders)
    rng.restore(generators)
    loaders.adopt(known)
    for at in range(number, min(STEPS, number + PER_EPOCH + 1)):
        found = take(feed, loaders, at)
        assert found.batch == places[at].batch, f"batch {at}, from {number} on"
        assert found.after == places[at].after, f"generators at {at}, from {number} on"
    feed.close()


def check(order: str, draws: str, more: dict[str, Any]) -> None:
    """Let a newcomer go on at every place, before and after the batch."""
    places = run(order, draws, more)
    for number, place in enumerate(places):
        go_on(loader(order, draws, **more), places, number, place.before, place.known)
        go_on(loader(order, draws, **more), places, number + 1, place.after, place.known)


ORDERS = ["shuffle", "generator", "drawn", "weighted", "distributed", "steps"]


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("order", [*ORDERS, "eager", "passes", "behind"])
def test_orders(order: str, processes: str) -> None:
    check(order, "", PROCESSES[processes])


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("draws", ["torch", "all", "own"])
@pytest.mark.parametrize("order", ["generator", "steps"])
def test_draws_of_the_dataset(order: str, draws: str, processes: str) -> None:
    check(order, draws, PROCESSES[processes])


@pytest.mark.parametrize("processes", ["inside", "processes"])
@pytest.mark.parametrize("order", ["generator", "steps", "passes"])
def test_a_dataset_that_counts(order: str, processes: str) -> None:
    check(order, "counts", PROCESSES[processes])


def test_a_dataset_that_counts_in_processes_that_stay_is_found_out() -> None:
    """It is noticed at the next batch or at the begin of an epoch."""
    more = PROCESSES["persistent"]
    places = run("steps", "counts", more)
    for number, place in enumerate(places[PER_EPOCH:-1], PER_EPOCH):
        for at, generators in ((number, place.before), (number + 1, place.after)):
            with pytest.raises(AnotherBatch):
                go_on(loader("steps", "counts", **more), places, at, generators, place.known)


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("draws", ["", "all"])
@pytest.mark.parametrize("order", ["shuffle", "generator", "drawn", "weighted", "steps", "passes", "behind"])
def test_nothing_is_drawn_that_plain_torch_does_not_draw(order: str, draws: str, processes: str) -> None:
    places = run(order, draws, PROCESSES[processes])
    torch.manual_seed(1), random.seed(2), numpy.random.seed(3)
    source = loader(order, draws, **PROCESSES[processes])
    found = []
    for epoch in range(EPOCHS):
        if isinstance(source.batch_sampler, StepSampler):
            source.batch_sampler.set_epoch(epoch)  # steps(epochs=...) sets this
        for batch in source:
            found.append(plain(batch))
            torch.rand(1), random.random()
    assert found == [place.batch for place in places]
    own = Loaders()
    own.enter(source)
    assert rng.capture() == places[-1].after


@pytest.mark.parametrize("processes", PROCESSES)
@pytest.mark.parametrize("draws", ["", "all"])
@pytest.mark.parametrize("order", ["shuffle", "drawn", "steps", "behind"])
def test_a_batch_that_was_written_into_comes_again(order: str, draws: str, processes: str) -> None:
    places = run(order, draws, PROCESSES[processes])
    torch.manual_seed(1), random.seed(2), numpy.random.seed(3)
    loaders = Loaders(True)
    feed = Feed(loader(order, draws, **PROCESSES[processes]), EPOCHS, loaders)
    for number in range(STEPS):
        batch = feed.batch(number)
        if number % 3 == 0:
            batch[0].zero_()
        found = take(feed, loaders, number)
        assert found.batch == places[number].batch and found.after == places[number].after, number
    feed.close()


def test_what_cannot_be_known_is_a_flaw() -> None:
    """Such a flaw comes from worker processes that draw and persist."""
    stays = PROCESSES["persistent"]

    def flaw(source: DataLoader[Any], *numbers: int, looks: bool = False) -> str:
        loaders = Loaders(True)
        for first in range(2):
            feed = Feed(source, 1, loaders)
            feed.numbering.start = first
            for number in numbers:
                feed.batch(number)
            feed.close()
            if looks:
                assert len([*source]) == PER_EPOCH
        return loaders.flaw()

    assert flaw(loader("steps", "all", **stays), *range(PER_EPOCH)) == ""
    assert flaw(loader("steps", "all", **stays), 0, 1) == DRAWS.format(why=LEFT)
    assert flaw(loader("steps", "all", **stays), *range(PER_EPOCH), looks=True) == DRAWS.format(why=SHARED)
    assert flaw(loader("steps", "", **stays), *range(PER_EPOCH), looks=True) == ""
    assert flaw(loader("steps", "", **stays), 0, 1) == ""
    assert flaw(loader("steps", "all", num_workers=2), 0, 1) == ""
    assert flaw(loader("eager", "all", **stays), *range(PER_EPOCH)) == DRAWS.format(why=EAGER)
    assert flaw(DataLoader(Stream(), 4, num_workers=1, persistent_workers=True), 0, 1) == DRAWS.format(why=STREAM)


def test_a_loader_with_an_iterator_of_its_own() -> None:
    class Own(DataLoader[Any]):
        def __iter__(self) -> Any:
            yield from super().__iter__()

    for more, wanted in (({}, ""), ({"persistent_workers": True}, OWN_WAY.format(kind="Own"))):
        loaders = Loaders(True)
        feed = Feed(Own(Data(), BATCH, num_workers=1, **more), 1, loaders)
        assert [plain(feed.batch(number)) for number in range(PER_EPOCH)][3] == [[6, 7]]
        feed.close()
        assert loaders.flaw() == wanted


@pytest.mark.parametrize("draws", ["", "all"])
def test_a_loader_that_the_script_opens(draws: str) -> None:
    """Its processes persist. Starting them must not draw, since a newcomer starts them at another time."""
    loaders = Loaders(True)
    source = loader("distributed", draws, **PROCESSES["persistent"])
    iterate = DataLoader.__iter__
    before = rng.capture()
    for _ in range(2):
        assert len([*loaders.opened_by_script(source, iterate)]) == PER_EPOCH
        assert rng.capture() == before
    assert loaders.flaw() == (DRAWS.format(why=OF_SCRIPT) if draws else "")
    assert loaders.opened_by_script(loader("shuffle", "", num_workers=1), iterate) is not None
    assert rng.capture() != before, "another one draws as it always did"


@pytest.mark.parametrize("processes", ["persistent", "processes"])
def test_a_loader_that_was_used_before_the_loop(processes: str) -> None:
    """The script looks at the first batch before its loop, in each life of the rank."""
    more = PROCESSES[processes]

    def looked_at(draws: str) -> DataLoader[Any]:
        source = loader("generator", draws, **more)
        next(iter(source))
        return source

    for draws in ("", "all"):
        torch.manual_seed(1), random.seed(2)
        loaders = Loaders(True)
        feed = Feed(looked_at(draws), EPOCHS, loaders)
        places = [take(feed, loaders, number) for number in range(STEPS)]
        assert not loaders.flaw()
        feed.close()
        for number in (0, 2, 3, 4, 9):
            go_on(looked_at(draws), places, number, places[number].before, places[number].known)
            go_on(looked_at(draws), places, number + 1, places[number].after, places[number].known)


def test_processes_that_are_not_forked() -> None:
    """The code that watches the processes is sent to them with the loader's other arguments."""
    more = {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"}
    places = run("generator", "all", more)
    for number in (3, 6):
        go_on(loader("generator", "all", **more), places, number + 1, places[number].after, places[number].known)
