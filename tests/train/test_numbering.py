"""The count of an `enumerate` is set while it asks for the next item."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from types import FrameType
from typing import Any

import pytest

from taskd.state import numbering
from taskd.state.numbering import Asked, Numbering

HANDED = [0, 1, 1, 2, 3, 3, 3, 7, 8]


class Loop:
    """A loop that hands out these steps, and the function that goes over it."""

    def __init__(
        self, handed: list[int], numbers: Numbering | None = None, start: int = 0, rehearsals: int = 0
    ) -> None:
        self.frames: list[FrameType] = []
        self.told: list[bool] = []
        self._numbers, self._handed, self._rehearsals = numbers or Numbering(), handed, rehearsals
        self.steps = self._yields()
        self._numbers.loop_begins(weakref.ref(self.steps))
        self._numbers.start = start

    def _yields(self) -> Generator[int, None, None]:
        for _ in range(self._rehearsals):
            self._numbers.hands_out_rehearsal(self._asked)
            yield -1
        for at in self._handed:
            self.told.append(self._numbers.hands_out(at, self._asked))
            yield at

    def _asked(self) -> Asked:
        return Asked(self.frames, True)

    def numbered(self, around: Callable[[Any], Any] = enumerate) -> list[int]:
        """Go over the steps, and return their numbers."""
        self.frames[:] = [sys._getframe()]
        found = []
        for number, _ in around(self.steps):
            found.append(number)
        return found


@pytest.mark.parametrize("first", [0, 5, -3])
def test_a_step_that_is_done_again_gets_its_number(first: int) -> None:
    loop = Loop(HANDED)
    assert loop.numbered(lambda steps: enumerate(steps, first)) == [at + first for at in HANDED]
    assert all(loop.told)


@pytest.mark.parametrize(
    "around",
    [
        lambda steps: enumerate(zip(steps, itertools.count(), strict=False)),
        lambda steps: enumerate(map(abs, steps)),
        lambda steps: enumerate(itertools.chain(steps, ())),
        lambda steps: enumerate(enumerate(steps, 9)),
    ],
)
def test_it_is_found_through_other_iterators(around: Any) -> None:
    assert Loop(HANDED).numbered(around) == HANDED


def logged(items: Iterable[int]) -> Iterator[int]:
    """Yield each item, and do something now and then."""
    for item in items:
        if str(item) == "1":
            str(item)
        yield item


def bar(items: Iterable[int]) -> Iterator[int]:
    """Yield each item, and count them for itself."""
    for number, item in enumerate(items):
        yield item
        str(number)


class Bar:
    """An object that is a bar of progress."""

    def __init__(self, items: Iterable[int]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[int]:
        yield from self._items


@pytest.mark.parametrize("through", [logged, bar, Bar, lambda items: Bar(bar(Bar(items)))])
def test_it_is_found_through_generators_that_hand_on_each_step(through: Any) -> None:
    assert Loop(HANDED).numbered(lambda steps: enumerate(through(steps))) == HANDED
    assert Loop(HANDED).numbered(lambda steps: through(enumerate(steps))) == HANDED


def test_a_generator_of_a_library_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    def progress(items: Iterable[int]) -> Iterator[int]:
        found = iter(items)
        while True:
            try:
                yield next(found)
            except StopIteration:
                return

    loop = Loop(HANDED)
    assert loop.numbered(lambda steps: enumerate(progress(steps))) == [*range(len(HANDED))] and not all(loop.told)
    monkeypatch.setattr(numbering, "passed_over", lambda file, name: name == "progress")
    assert Loop(HANDED).numbered(lambda steps: enumerate(progress(steps))) == HANDED


def some(items: Iterable[int]) -> Iterator[int]:
    """Yield under a condition."""
    for item in items:
        if item % 2:
            yield item


def but_some(items: Iterable[int]) -> Iterator[int]:
    """Leave some out."""
    for item in items:
        if item % 2 == 0:
            continue
        yield item


def twice(items: Iterable[int]) -> Iterator[int]:
    """Yield each item twice."""
    for item in items:
        for _ in range(2):
            yield item


def halves(items: Iterable[int]) -> Iterator[int]:
    """Yield in two places."""
    for item in items:
        yield item
        yield item


def others(items: Iterator[int]) -> Iterator[int]:
    """Use one item, and yield the next."""
    for _ in range(2):
        next(items)
        yield next(items)


@pytest.mark.parametrize("through", [some, but_some, twice, halves, others])
def test_a_generator_that_leaves_some_out_or_repeats_them_is_left_alone(through: Any) -> None:
    loop = Loop([0, 1, 1, 2])
    numbers = loop.numbered(lambda steps: enumerate(through(steps)))
    assert numbers == [*range(len(numbers))]
    assert loop.told == [True, True, False, False]


def test_an_enumerate_over_loops_is_left_alone() -> None:
    """What numbers the loops does not number their steps."""
    numbers, found, told = Numbering(), list[tuple[int, int]](), list[bool]()
    loops = [Loop(handed, numbers, start) for handed, start in (([0, 1], 0), ([2, 2, 3], 2), ([4], 4))]
    for phase, loop in enumerate(loops):
        numbers.loop_begins(weakref.ref(loop.steps))
        numbers.start = (0, 2, 4)[phase]
        loop.frames[:] = [sys._getframe()]
        for at in loop.steps:
            found.append((phase, at))
        told += loop.told
    assert found == [(0, 0), (0, 1), (1, 2), (1, 2), (1, 3), (2, 4)]
    assert told == [True, True, True, False, False, True]


def test_what_spans_several_loops() -> None:
    """A survivor knows how far off it is. A newcomer does not, if it has passed a loop."""

    def both(loops: list[Loop], numbers: Numbering) -> Iterator[int]:
        for loop, start in zip(loops, (0, 3), strict=True):
            numbers.loop_begins(weakref.ref(loop.steps))
            numbers.start = start
            yield from loop.steps

    def numbered(numbers: Numbering, loops: list[Loop]) -> list[int]:
        for loop in loops:
            loop.frames[:] = [sys._getframe()]
        found = []
        for number, _ in enumerate(both(loops, numbers)):
            found.append(number)
        return found

    numbers = Numbering()
    loops = [Loop([0, 1, 2], numbers), Loop([3, 4, 4, 5], numbers)]
    assert numbered(numbers, loops) == [0, 1, 2, 3, 4, 4, 5] and all(loops[1].told)
    numbers = Numbering()
    loops = [Loop([], numbers, rehearsals=1), Loop([4, 5], numbers, rehearsals=1)]
    numbered(numbers, loops)
    assert loops[1].told[0] is False


def test_a_newcomer_goes_on_at_the_number_of_its_step() -> None:
    loop = Loop([12, 13], start=10, rehearsals=2)
    assert loop.numbered() == [0, 1, 2, 3]


def test_another_layout_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering, "_count_of", lambda counting: 77)
    loop = Loop([0, 1, 1])
    assert loop.numbered() == [0, 1, 2] and loop.told == [True, True, False]


def test_steps_that_nobody_numbers_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbering.gc, "get_objects", lambda: pytest.fail("it looks"))
    loop = Loop([0, 1, 1])
    for _ in loop.steps:
        pass
    assert loop.told == [True] * 3
