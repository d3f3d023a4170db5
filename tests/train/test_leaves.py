"""Tests that all plain values that a script uses are found, however they are held, each by a name that says where."""

from __future__ import annotations

import argparse
import collections
import functools
import logging
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from taskd.state.leaves import GONE, leaves_of, moved_between, moved_meanwhile, stored_leaves
from taskd.state.modules import Modules
from taskd.state.places import Place, reached
from taskd.state.plain import Noted, packed
from taskd.worker.step import Step
from tests import verdicts

WEIGHT = dict[str, Any](other=object())
NONE = frozenset[int]()


class Held:
    """A class of a script."""

    of_all = 1.0

    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        raise AssertionError("this is the script's own code")

    def __hash__(self) -> int:
        raise AssertionError("this is the script's own code")

    def __getattr__(self, name: str) -> Any:
        raise AssertionError("this is the script's own code")


@dataclass(slots=True)
class Slotted:
    """A class whose objects have no __dict__."""

    value: float


def holding(value: float) -> dict[str, tuple[Any, str]]:
    """Return objects that hold this number, each in another way, and the name under which it must be found."""

    def closure() -> float:
        return value

    def default(one: float = value) -> float:
        return one

    def named(*, one: float = value) -> float:
        return one

    def attribute() -> None:
        return None

    def by_name() -> dict[str, Any]:
        return WEIGHT

    @functools.lru_cache(maxsize=8)
    def cached(one: int) -> float:
        return one * value

    @functools.cache
    def cached_for_ever(one: int) -> float:
        return one * value

    @functools.wraps(closure)
    def decorated() -> float:
        return closure()

    class Class:
        one = value

    class Inner:
        one = Held(value)

        @classmethod
        def get(cls) -> Any:
            return Held

    module = nn.Linear(1, 1)
    module.worth = attribute.one = value  # type: ignore[assignment, attr-defined]
    Held.of_all, _, _ = value, cached(1), cached_for_ever(1)
    WEIGHT.update(one=value)
    return {
        "itself": (value, "it"),
        "list": ([object(), value], "it[1]"),
        "deque": (collections.deque([object(), value]), "it[1]"),
        "dict": ({"a": (object(), value)}, "it['a'][1]"),
        "object": (Held(value), "it.value"),
        "its class": (Held(2.0), "Held.of_all"),
        "slots": (Slotted(value), "it.value"),
        "namespace": (types.SimpleNamespace(one=Held(value)), "it.one.value"),
        "arguments": (argparse.Namespace(one=value), "it.one"),
        "closure": (closure, "it.value"),
        "default": (default, "default 1 of it"),
        "keyword": (named, "default one of it"),
        "attribute": (attribute, "it.one"),
        "name": (by_name, "WEIGHT['one']"),
        "cached": (cached, "what it remembers[1]"),
        "cached for ever": (cached_for_ever, "what it remembers[0]"),
        "decorated": (decorated, "it.value"),
        "partial": (functools.partial(print, end=Held(value)), "it['end'].value"),
        "class": (Class, "it.one"),
        "in a class": (Inner, "it.one.value"),
        "by a class": (vars(Inner)["get"], "Held.of_all"),
        "method": (Held(value).__init__, "it.value"),
        "in a module": (nn.Sequential(module), "it.0.worth"),
    }


@pytest.mark.parametrize("how", holding(1.0))
def test_what_is_held_is_seen(how: str) -> None:
    value, name = holding(7.25)[how]
    found = leaves_of([("it", value)], NONE)
    assert found.get(name) == packed(7.25), sorted(found)


def test_another_module_is_seen_where_it_is_named() -> None:
    def reads() -> int:
        return verdicts.seen

    verdicts.seen = 3  # type: ignore[attr-defined]
    try:
        assert leaves_of([("it", reads)], NONE)["verdicts.seen"] == packed(3)
    finally:
        del verdicts.seen  # type: ignore[attr-defined]


def test_what_libraries_set_in_the_environment_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile leaves an address of this process there."""
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "1234")
    assert not any("_TORCH" in name for name in leaves_of([("os.environ", os.environ)], NONE))


def test_the_environment_is_seen() -> None:
    os.environ["_TASKD_TEST_LEAVES"] = "7"
    try:
        assert leaves_of([("os.environ", os.environ)], NONE)["os.environ['_TASKD_TEST_LEAVES']"] == packed("7")
    finally:
        del os.environ["_TASKD_TEST_LEAVES"]


class Kind(Enum):
    """Has an attribute besides its value."""

    ONE = 1

    def __init__(self, _value: int) -> None:
        self.weight = 7.25


class Of(type):
    """A class of classes, with a value of its own."""

    weight = 7.25


class Made(metaclass=Of):
    """A class with such a class."""


def counts() -> Iterator[int]:
    weight = 7.25
    while True:
        yield int(weight)


def test_odd_places_are_seen() -> None:
    numbers = counts()
    next(numbers)
    odd = {
        "it.ONE.weight": Kind,
        "Of.weight": Made,
        "it.weight": numbers,
        "it[Held]": {Held: 7.25},
    }
    for name, value in [*odd.items(), ("it.weight", numbers.send)]:
        found = stored_leaves([("it", value)], NONE)
        assert found[name].data == packed(7.25), sorted(found)


def test_marks_change_with_what_they_stand_for() -> None:
    held = Held(torch.zeros(2))

    def mark(value: Any) -> bytes:
        held.value = value
        return stored_leaves([("it", held)], NONE)["it.value"].data

    tensor, array = torch.zeros(2), numpy.zeros(2000)
    before = mark(tensor)
    assert mark(tensor) == before == mark(torch.zeros(2)) != mark(torch.ones(2))
    tensor.add_(1)
    assert mark(tensor) != before
    before = mark(array)
    assert mark(array.copy()) == before
    array[0] = 1
    assert mark(array) != before
    assert mark(torch.float32) != mark(torch.bfloat16)


def test_what_the_source_shows_and_what_a_graph_has_made_get_no_mark() -> None:
    held = Held(torch.zeros(2))
    assert "it.value" not in stored_leaves([("it", held)], NONE, NONE, {(id(held), "value")})
    held.value = torch.zeros(2, requires_grad=True) * 2
    assert "it.value" not in stored_leaves([("it", held)], NONE)
    module = nn.Linear(1, 1)
    module.features = torch.zeros(2)
    assert "it.features" not in stored_leaves([("it", module)], NONE)


def test_another_method_is_another_mark() -> None:
    held = Held(None)
    held.value = held.__init__
    before = stored_leaves([("it", held)], NONE)["it.value (which one)"]
    held.value = held.__eq__
    assert stored_leaves([("it", held)], NONE)["it.value (which one)"].data != before.data


def test_what_is_put_back_is_not_looked_into_but_its_class() -> None:
    held = Held(3.0)
    found = leaves_of([("it", held)], {id(held)})
    assert "it.value" not in found and "Held.of_all" in found


def test_an_installed_package_is_not_looked_into() -> None:
    found = leaves_of([("sys", sys), ("raises", pytest.raises), ("log", logging.getLogger())], NONE)
    assert not found, found


def test_what_torch_sets_in_each_forward_is_not_looked_at() -> None:
    """DistributedDataParallel notes in a forward whether gradients are computed."""
    module = nn.Linear(1, 1)
    module.require_forward_param_sync = module.require_backward_grad_sync = False  # type: ignore[assignment]
    found = leaves_of([("it", module)], NONE)
    assert "it.require_forward_param_sync" not in found and "it.require_backward_grad_sync" in found


def test_two_of_one_name_are_both_seen() -> None:
    found = leaves_of([("it", 1), ("it", 2)], NONE)
    assert sorted(found.values()) == sorted([packed(1), packed(2)])


def test_what_goes_in_circles_ends() -> None:
    first, second = Held(1.0), Held(2.0)
    first.__dict__["other"], second.__dict__["other"] = second, first
    assert {"it.value", "it.other.value"} <= leaves_of([("it", first)], NONE).keys()


@pytest.mark.parametrize("clock", [time.time, time.monotonic, time.perf_counter])
def test_a_time_that_was_taken_meanwhile_has_not_moved(clock: Callable[[], float]) -> None:
    before = clock()
    held = Held(clock())
    now = leaves_of([("it", held)], NONE)
    assert "it.value" not in moved_between({"Held.of_all": now["Held.of_all"]}, now, [(before, clock())])
    assert "it.value" in moved_between({}, now, [(clock(), clock())])


def test_what_has_moved_between_two_loops() -> None:
    def noted(**values: Any) -> Noted:
        return leaves_of(values.items(), NONE)

    now = time.perf_counter()
    ended = noted(best=1.0, same=2, started=now - 9.0, left=3)
    found = noted(best=0.5, same=2, started=now, fresh="a")
    moved = noted(best=0.5, fresh="a") | {"left": GONE}
    assert moved_between(ended, found, [(now - 5, now)]) == moved
    assert moved_between(ended, found, [(now + 5, now + 9)]).keys() == {"best", "fresh", "started", "left"}


def test_what_is_long_is_looked_at_here_and_there() -> None:
    rows = [(at, 0.5) for at in range(1 << 17)]
    many = dict.fromkeys(range(1 << 17), 0.5)
    before = leaves_of([("rows", rows), ("many", many)], NONE)
    rows.append((1, 1.0))
    many[-1] = 1.0
    now = leaves_of([("rows", rows), ("many", many)], NONE)
    assert now["rows"] != before["rows"] and now["many"] != before["many"]


@pytest.mark.parametrize("how", holding(1.0))
def test_what_is_left_out_is_not_seen(how: str) -> None:
    value, _ = holding(7.25)[how]
    left_out = {id(value)} if how != "itself" else {"it"}
    assert packed(7.25) not in leaves_of([("it", value)], NONE, left_out).values()


def test_where_something_is_can_be_left_out() -> None:
    held = {"in": Held(1.0), "beside": [1, 2.5, 3]}
    place = Place("it['in'].value", "it", ((False, "in"), (True, "value")))
    found = leaves_of([("it", held)], NONE, {*place.spots(held)})
    assert "it['in'].value" not in found and found["it['beside']"] == packed([1, 2.5, 3]) and "Held.of_all" in found
    listed = Place("it['beside']", "it", ((False, "beside"),))
    found = leaves_of([("it", held)], NONE, {*listed.spots(held)})
    assert "it['beside']" not in found and "it['in'].value" not in found  # a dict is inspected as a whole


def test_what_is_inside_of_a_known_object_is_left_out() -> None:
    held = {"in": Held(1.0)}
    place = Place("it['in'].value", "it", ((False, "in"), (True, "value")))
    assert reached([(place, held)]) == reached([(place, held)], {7}) == {"it['in'].value": 1.0}
    assert reached([(place, held)], {id(held)}) == reached([(place, held)], {id(held["in"])}) == {}


class Counting(nn.Module):
    """Keeps numbers, and a number in a list, in itself and in a module inside."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.calls, self.kept, self.held = 0, [0], Held(0.0)
        self.inner = inner


class Stating(Counting):
    """Keeps its own state."""

    def get_extra_state(self) -> Any:
        return self.kept

    def set_extra_state(self, state: Any) -> None:
        self.kept = state


@pytest.mark.parametrize(("kind", "lost"), [(Counting, {"m.kept", "m.held.value"}), (Stating, set[str]())])
def test_what_modules_put_back_can_be_left_out(kind: type[Counting], lost: set[str]) -> None:
    model, other, modules = kind(Counting()), Counting(), Modules()
    assert modules.look({"model": model}) == []
    found = leaves_of([("m", model), ("other", other)], NONE, modules.spots()).keys()
    numbers = {name for name in found if name.endswith((".calls", ".kept", ".value"))}
    inside, outside = {"m.inner.kept", "m.inner.held.value"}, {"other.calls", "other.kept", "other.held.value"}
    assert numbers == lost | inside | outside


def test_what_has_changed_in_a_loop() -> None:
    now = time.perf_counter()
    begun = leaves_of({"step": 3, "text": "a", "same": 4, "times": [1], "at": now - 9, "flag": False}.items(), NONE)
    found = leaves_of({"step": 4, "text": "b", "same": 4, "times": [2], "at": now, "flag": True}.items(), NONE)
    assert moved_meanwhile(begun, found, [(now - 5, now)]) == ["step", "text", "times"]
    assert moved_meanwhile(begun, {**found, "fresh": b"\x01"}, [(now + 5, now + 9)]) == ["at", "step", "text", "times"]


def test_an_attribute_with_the_name_of_a_global_does_not_lead_there() -> None:
    code = compile("def sees(self):\n    return self.seen + limit + one.rate", __file__, "exec")
    space: dict[str, Any] = {"__name__": "script", "seen": 3, "limit": 4, "rate": 5, "one": Held(6.0)}
    exec(code, space)
    found = leaves_of([("sees", space["sees"])], NONE).keys()
    assert {"limit", "one.value"} <= found and not {"seen", "rate"} & found


def test_a_step_in_a_variable_that_had_none_is_no_change() -> None:
    """At the first look the loop's variable is not there yet. A function of the script may name it."""
    code = compile("def says():\n    return step.number", __file__, "exec")
    space: dict[str, Any] = {"__name__": "script"}
    exec(code, space)
    before = leaves_of([("says", space["says"])], NONE)
    space["step"] = Step.__new__(Step)
    assert leaves_of([("says", space["says"])], NONE) == before
