"""Tests the plain values that the loops around a loop set: they are noted, and given to a newcomer."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import date, datetime, timedelta
from datetime import time as hour
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler

from taskd.state.around import Around
from taskd.state.found import loaded_from, plain_in
from taskd.state.plain import MOST_BYTES, Noted, can_be_given, filled, packed, unpacked


class Point(NamedTuple):
    x: Any


class Colour(Enum):
    RED = "red"


class Outer:
    class Colour(Enum):
        BLUE = "blue"


class Whole(IntEnum):
    ONE = 1


class Rights(Flag):
    READ = 1
    WRITE = 2
    GRANT = 4


def of_a_function(x: int) -> Any:
    """Return a named tuple of a class that nobody finds by its name."""

    class Local(NamedTuple):
        x: int

    return Local(x)


class Wide(Point):
    """Has a dict beside its parts."""


@pytest.mark.parametrize(
    "value",
    [
        *(1, -(2**80), 0.5, True, None, "text", b"bytes", 1j, np.float64(0.5), np.int32(3), np.bool_(True)),
        *([1, [2.0, "a"]], (1, 2), {"a": [None], 3: (True,)}, {1, 2}, frozenset("ab"), [[[[[1]]]]], {(1, 2): 3}),
        *(deque([1, 2], 3), deque([1]), Counter("aab"), OrderedDict(a=1), [0.5] * 5000, "x" * 5000),
        *(Point(1), {Point((2, 3)): 4}, Colour.RED, {Colour.RED: Whole.ONE}, Outer.Colour.BLUE, Whole.ONE),
        *(Decimal("1.50"), Fraction(1, 3), date(2000, 1, 1), datetime(2000, 1, 1, 2, 3, 4, 5), timedelta(1, 2, 3)),
    ],
)
def test_what_is_plain(value: Any) -> None:
    data = packed(value)
    assert data is not None and can_be_given(data)
    assert unpacked(data) == value and type(unpacked(data)) is type(value)


@pytest.mark.parametrize("value", [torch.ones(1), [torch.ones(1)], object(), "\ud800", np.ones(1), print])
def test_what_is_not(value: Any) -> None:
    assert packed(value) is None


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (of_a_function(1), of_a_function(2)),
        ([of_a_function(1), {(2, 3)}], [of_a_function(1), {(2, 4)}]),
        (Wide(1), Wide(2)),
        (Rights.READ | Rights.WRITE, Rights.READ),
        (Rights.READ | Rights.WRITE, Rights.READ | Rights.GRANT),
        (Point([1]), Point([2])),
        (Point((1, {2})), Point((1, {3}))),
        (hour(1, 2), hour(1, 3)),
        ("x" * MOST_BYTES, "y" + "x" * (MOST_BYTES - 1)),
        ([*range(2 << 20)], [*range(1, 1 + (2 << 20))]),
    ],
    ids=[
        "named tuple",
        "in a list",
        "more",
        "flags",
        "two flags",
        "a list inside",
        "a set inside",
        "time",
        "text",
        "list",
    ],
)
def test_what_is_only_compared(value: Any, other: Any) -> None:
    data = packed(value)
    assert data is not None and not can_be_given(data)
    assert data == packed(value) and data != packed(other)


def test_no_text_of_an_object_s_own_is_asked_for() -> None:
    class Shy:
        def __repr__(self) -> str:
            raise AssertionError

    assert packed({Shy()}) is None and packed([Shy()]) is None


def test_one_without_an_end_is_none() -> None:
    value: list[Any] = []
    value.append(value)
    assert packed(value) is None


@pytest.mark.parametrize(
    "value",
    [[1], {1: 2}, {1}, deque([1], 3), Counter("aa"), OrderedDict(a=1), defaultdict(list, a=[1]), bytearray(b"x")],
)
def test_what_can_change_is_filled(value: Any) -> None:
    there = value.copy()
    there.clear()
    assert filled(there, unpacked(packed(value) or b"")) and there == value
    assert not filled((), (1,)) and not filled([], {})


def test_not_a_number_is_equal_to_itself() -> None:
    assert packed(float("nan")) == packed(float("nan"))


def noted(**values: Any) -> Noted:
    return {name: data for name, value in values.items() if (data := packed(value)) is not None}


# ---- the loops around -----------------------------------------------------------------------------------------

total = 0.0


class Holder:
    def __init__(self) -> None:
        self.best, self.other = 0.0, 1

    def better(self) -> None:
        self.best += 1


def values(found: Noted) -> dict[str, Any]:
    """Return the values by their names in the source."""
    return {name.rpartition(": ")[2]: unpacked(data) for name, data in found.items()}


def test_what_the_loops_around_set() -> None:
    global total
    around, holder, seen, table = Around(), Holder(), list[int](), {"rate": 1.0}
    fixed, weight, found = 3, 1.0, list[dict[str, Any]]()
    for epoch in range(2):
        for _ in range(1):
            found.append(values(around.sets(frozenset())))
        weight, total = weight + fixed, total + 1
        holder.better()
        seen.append(epoch)
        table["rate"] = 0.5
    same = {"weight": 4.0, "total": 1.0, "holder.best": 1.0, "seen": [0], 'table["rate"]': 0.5}
    first, second = ({name.replace("'", '"'): value for name, value in one.items()} for one in found)
    assert {name: second.get(name) for name in same} == same and first["weight"] == 1.0
    assert not {"fixed", "epoch", "holder.other"} & second.keys(), second


def test_they_are_given() -> None:
    global total
    around, holder, seen, table = Around(), Holder(), [7], {"rate": 1.0}
    weight, other, found, alias, total = 1.0, 2.0, list[Noted](), seen, 0.0
    for epoch in range(3):
        for _ in range(1):
            if epoch < 2:
                found.append(around.sets(frozenset()))
            else:
                given = around.give(found[0], frozenset())
        if epoch < 2:
            weight, other, total = weight + 1, other + 1, total + 1
            holder.better()
            seen.append(epoch)
            table["rate"] = 0.5
    assert (weight, other) == (1.0, 2.0)
    assert (total, holder.best, seen, table) == (0.0, 0.0, [7], {"rate": 1.0})
    assert seen is alias and {"weight", "total", "seen"} <= {*given}


def inner(around: Around, weight: float, note: Callable[[Around], Any]) -> tuple[float, Any]:
    for _ in range(1):
        found = note(around)
    return weight, found


def test_through_the_functions_on_the_way() -> None:
    around, best, told = Around(), 0.0, list[Any]([object()])  # an object, so that `told` is not plain and not given
    for epoch in range(3):
        if epoch < 2:
            inner(around, best, lambda it: told.append({**it.sets(frozenset()), **it.goes_over()}))
            best += 0.5
        else:
            weight, _ = inner(around, best, lambda it: it.give(told[1], frozenset()))
    assert values(told[2])["epoch"] == 1 and values(told[2])["weight"] == 0.5
    assert (best, weight) == (0.0, 0.0)


def test_what_the_loops_around_keep_for_later() -> None:
    around, kept, best = Around(), torch.zeros(1), 0
    for epoch in range(2):
        for _ in range(1):
            found = {name for name, _ in around.kept(frozenset())}
            last = torch.ones(1)
        if epoch == best:
            shown = torch.ones(1)
            torch.equal(shown, kept)
        if epoch:
            kept = torch.ones(1)
        print(last)
    torch.equal(kept, kept)
    assert found & {"kept", "shown", "last"} == {"kept"}


def test_arguments_without_a_loop_around_are_nobody_s() -> None:
    assert inner(Around(), 1.0, lambda it: it.sets(frozenset()))[1] == {}


def test_what_is_no_plain_value_is_not_replaced() -> None:
    around, thing = Around(), object()
    kept, found = thing, noted(thing=1.0)
    for _ in range(1):
        for _ in range(1):
            around.give(found, frozenset())
        if thing is None:
            thing = object()
    assert thing is kept


def test_numbers_in_what_is_made_anew() -> None:
    class Criterion(nn.Module):
        def __init__(self, weight: float) -> None:
            super().__init__()
            self.weight = weight

    def told(weight: float, anew: bool) -> Noted:
        return plain_in([("criterion", Criterion(weight)), ("n", weight)], lambda name: anew and name == "criterion")

    assert told(1.0, True) == told(1.0, True) and told(1.0, True)["criterion"] != told(2.0, True)["criterion"]
    assert [*told(1.0, False)] == ["n"]


def test_a_time_of_day_is_nobody_s_number() -> None:
    assert plain_in([("started", time.time() - 5), ("n", 5)], lambda _: False) == noted(n=5)


def test_what_chooses_the_samples() -> None:
    def of(indices: Any, weights: list[float]) -> dict[str, int]:
        data = Subset(range(9), indices)  # type: ignore[arg-type]
        return loaded_from(DataLoader(data, sampler=WeightedRandomSampler(weights, 3)))

    first = of([1, 2, 3], [0.1, 0.2, 0.7])
    assert first == of([1, 2, 3], [0.1, 0.2, 0.7]) and {"the loader's dataset.indices"} <= first.keys()
    for other in (of([1, 2, 4], [0.1, 0.2, 0.7]), of([1, 2, 3], [0.2, 0.1, 0.7])):
        assert other != first and other.keys() == first.keys()
    assert loaded_from([torch.ones(2)]) != loaded_from([torch.zeros(2)])
