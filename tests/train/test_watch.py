"""Looks at the same things again: each change is seen, and nothing of the script is kept alive."""

from __future__ import annotations

import contextvars
import functools
import gc
import threading
import weakref
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
import torch
from torch import nn

from taskd.state.leaves import NONE, Thing, stored_leaves
from taskd.state.watch import MOST_BYTES, Watch


class Phase(Enum):
    """A value that cannot be made again, only compared."""

    WARM = 1
    HOT = 2


class Slotted:
    """Has no __dict__."""

    __slots__ = ("gain", "more")

    def __init__(self, gain: float = 1.0) -> None:
        self.gain = gain


class Counting:
    """Counts for all of its objects."""

    of_all = 0

    def __init__(self) -> None:
        self.count, self.seen, self.inner = 0, [1.0], Slotted()
        self.last: Any = None
        self.by_name: dict[str, Any] = {"a": Slotted()}


class Module(nn.Module):
    """Counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.layer = 0, nn.Linear(1, 1)


def closure() -> tuple[Callable[[], Any], Callable[[Any], None]]:
    """Return a function that reads a variable of this one, and a function that sets it."""
    value: Any = 0

    def read() -> Any:
        return value

    def write(new: Any) -> None:
        nonlocal value
        value = new

    return read, write


def default(state: dict[str, int] = {"calls": 0}) -> int:  # noqa: B006
    """Count in a default value."""
    return state["calls"]


counting, slotted, module, local = Counting(), Slotted(), Module(), threading.local()
read, write = closure()
context = contextvars.ContextVar("context", default=0)
part = functools.partial(default, state={"calls": 0})
local.turns = 0
phase, number, rows = Phase.WARM, 1, deque([1, 2])


def uses() -> tuple[Any, ...]:
    """Name all of them, as a function does that a loop calls."""
    return counting, slotted, module, local, read, context, part, default, phase, number, rows


def set_global(name: str, value: Any) -> None:
    """Set a variable of this file."""
    globals()[name] = value


CHANGES: dict[str, Callable[[], Any]] = {
    "attribute": lambda: setattr(counting, "count", 5),
    "list": lambda: counting.seen.append(2.0),
    "None": lambda: setattr(counting, "last", 1),
    "a new attribute": lambda: setattr(counting, "new", 7),
    "slot": lambda: setattr(counting.inner, "gain", 3.0),
    "an empty slot": lambda: setattr(slotted, "more", 3.0),
    "an object in a dict": lambda: setattr(counting.by_name["a"], "gain", 9.0),
    "a new item": lambda: counting.by_name.update(b=Slotted()),
    "another object": lambda: vars(counting).update(inner=Slotted(11.0)),
    "class": lambda: setattr(Counting, "of_all", 4),
    "module": lambda: setattr(module, "calls", 8),
    "thread": lambda: setattr(local, "turns", 2),
    "closure": lambda: write(6),
    "context": lambda: context.set(3),
    "partial": lambda: part.keywords["state"].update(calls=2),
    "default": lambda: default.__defaults__[0].update(calls=3),  # type: ignore[index]
    "Enum": lambda: set_global("phase", Phase.HOT),
    "global": lambda: set_global("number", 2),
    "deque": lambda: rows.append(3),
    "from a number to a list": lambda: set_global("number", [1]),
    "to an object": lambda: set_global("number", Slotted()),
    "gone": lambda: delattr(slotted, "gain"),
}
"""Each happens once, after all those before it."""


def test_every_change_is_seen() -> None:
    watch, things = Watch(), [("uses", uses)]
    search(watch, things)
    for what, change in CHANGES.items():
        before = {**watch.values}
        change()
        changed = watch.look(lively(watch, things))
        if changed is None:
            search(watch, things)
        wanted = found(things)
        assert watch.values == wanted and watch.values != before, what
        if changed is not None:
            assert changed == {name for name in wanted if before[name] != wanted[name]}, what
        assert watch.look(lively(watch, things)) == set(), what


def found(things: list[Thing]) -> dict[str, bytes]:
    """Return all that a search finds."""
    return {name: leaf.data for name, leaf in stored_leaves(things, NONE).items()}


def search(watch: Watch, things: list[Thing]) -> None:
    """Search all."""
    watch.search(things, NONE, NONE)


def lively(watch: Watch, things: list[Thing]) -> list[Thing]:
    """Return what a look needs."""
    return [(name, value) for name, value in things if name not in watch.dull]


def test_it_keeps_nothing_alive() -> None:
    watch, kept = Watch(), Counting()
    loss = torch.ones(3, requires_grad=True) * 2
    seen = weakref.ref(kept), weakref.ref(loss)
    things: list[Thing] = [("kept", kept), ("loss", loss), ("batch", {"x": loss})]
    search(watch, things)
    assert watch.look(lively(watch, things)) == set()
    del kept, loss, things
    gc.collect()
    assert [one() for one in seen] == [None, None]


def test_tensors_are_marked_without_a_search() -> None:
    watch, holder = Watch(), Counting()
    holder.last = torch.ones(1)
    search(watch, [("holder", holder)])
    assert watch.look([("holder", holder)]) == set()
    holder.last = torch.zeros(2)
    assert watch.look([("holder", holder)]) == {"holder.last"}
    holder.last.add_(1)
    assert watch.look([("holder", holder)]) == {"holder.last"}
    assert watch.look([("holder", holder)]) == set()
    holder.last = holder.last.requires_grad_() * 2  # a result of a step
    assert watch.look([("holder", holder)]) is None


def test_things_without_a_value_are_dull() -> None:
    watch = Watch()
    search(watch, [("layer", nn.ReLU()), ("function", torch.relu), ("holder", Counting())])
    assert watch.dull >= {"function"} and "holder" not in watch.dull


@pytest.mark.parametrize("count", [1, MOST_BYTES])
def test_of_a_long_value_a_digest_is_kept(count: int) -> None:
    watch, holder = Watch(), Counting()
    holder.seen = [1.0] * count
    search(watch, [("holder", holder)])
    holder.seen[0] = 2.0
    assert watch.look([("holder", holder)]) == {"holder.seen"} and len(watch.values["holder.seen"]) < 99


def test_two_variables_of_one_name_are_kept_apart() -> None:
    watch, one, other = Watch(), closure(), closure()
    things = [("one", one[0]), ("other", other[0])]
    search(watch, things)
    other[1](3)
    changed = watch.look(things)
    assert changed is not None and len(changed) == 1
    one[1](4)
    assert watch.look(things) not in (changed, set())
