"""Sets the count of an `enumerate` through which a script takes its steps.

`for i, step in enumerate(session.steps(loader)):` is how many scripts are written. A step that is done again would get
the next number there, and a newcomer would count from the beginning. No code in Python can change such a count. CPython
keeps it in the first field of the object. While an `enumerate` asks for the next item, the field holds the number which
that item will get. So it is written there, in this process's memory, when a step is handed out.

Which `enumerate` it is, the stack says: the function that waits for the steps has asked it, and it takes from them by
`zip`, `map` and the like. If that function is itself a generator that hands on each step (a bar of progress), the
function that waits for it comes next.

Failure modes: another implementation of Python, or another layout (the field is read in two ways first, and nothing is
written if they differ); a generator that leaves out steps; an `enumerate` over several loops, on a newcomer that has
passed some of them. Then nothing is set, and the caller hears of it. All objects of the process are searched for an
`enumerate`, which takes some ten milliseconds. So this is only done when a count is wrong, and used.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import inspect
import itertools
import weakref
from collections.abc import Callable, Generator
from types import FrameType, GeneratorType
from typing import Any, NamedTuple

from taskd.state.sources import loops_at, node_of, passed_over

_BUILT_IN = (enumerate, zip, map)
_DEPTH = 6


class Asked(NamedTuple):
    """The functions of the script that take the steps."""

    frames: list[FrameType]
    """Those whose loops number the steps, and use the numbers."""
    settable: bool
    """Whether only enumerate() numbers them."""


class Numbering:
    """The numbers that the steps of a session get."""

    def __init__(self) -> None:
        self.start = 0
        """The number of the loop's first step, counted from the first step of all loops."""
        self._handed = 0
        """The number in the loop that the next step gets, if nothing is set."""
        self._steps: Callable[[], Any] = lambda: None
        self._here: list[Any] = []
        """On a newcomer that has not begun to train: each `enumerate` around its rehearsal in this loop."""
        self._earlier: list[Any] = []
        """Those around rehearsals in earlier loops."""

    def loop_begins(self, steps: weakref.ref[Generator[Any, None, None]]) -> None:
        """A loop begins, which takes its steps from this generator."""
        self.start = self._handed = 0
        self._steps, self._here, self._earlier = steps, [], [*self._earlier, *self._here]

    def hands_out(self, number: int, ask: Callable[[], Asked]) -> bool:
        """Note that the generator is about to yield this step, and set the counts if they are wrong. Return False if
        this is necessary and impossible."""
        off = number - self.start - self._handed
        spans, self._here, self._earlier = self._earlier if self._here else [], [], []
        self._handed += 1
        if (off == 0 and not spans) or not (asked := ask()).frames:
            return True
        found = _around(self._steps(), asked.frames) if asked.settable else []
        if not found or any(one is other for one in found for other in spans):
            return False
        self._handed += off
        moved = [_add(one, off) for one in found]
        return all(moved)

    def hands_out_rehearsal(self, ask: Callable[[], Asked]) -> None:
        """Note that the generator is about to yield a step whose number does not matter."""
        self._handed += 1
        if frames := ask().frames:
            self._here += _around(self._steps(), frames)


def _around(steps: Any, frames: list[FrameType]) -> list[Any]:
    """Return each `enumerate` around these steps. Empty: it was not found in one of these frames."""
    counting = [one for one in gc.get_objects() if type(one) is enumerate]
    found, missing, before = list[Any](), [*frames], 0
    below = steps.gi_frame
    while missing and (above := below.f_back) is not None:
        found += [one for one in counting if _takes_from(one, below, _DEPTH)]
        if above in missing:
            if len(found) == before:
                return []
            missing.remove(above)
            before = len(found)
        if missing and not _hands_on_each(above):
            return []
        below = above
    return [] if missing else found


def _takes_from(one: Any, frame: FrameType, depth: int) -> bool:
    """Whether this iterator takes its items from the generator with this frame, one for one."""
    kind = type(one)
    if kind is GeneratorType:
        return one.gi_frame is frame
    if depth and kind in _BUILT_IN:
        _, inner, *_ = one.__reduce__()
        return any(_takes_from(part, frame, depth - 1) for part in inner)
    return (
        bool(depth)
        and kind is itertools.chain
        and any(_takes_from(part, frame, depth - 1) for part in gc.get_referents(one))
    )


def _hands_on_each(frame: FrameType) -> bool:
    """Whether this is a generator that yields each item of the loop in which it asks for one. Of a library's generator,
    this is assumed."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_GENERATOR:
        return False
    if passed_over(code.co_filename, code.co_name):
        return True
    home, line = node_of(code, frame.f_globals), frame.f_lineno
    yields = (
        [part for part in ast.walk(home) if isinstance(part, (ast.Yield, ast.YieldFrom))] if home is not None else []
    )
    loops = loops_at(home, line)
    if len(yields) != 1 or not loops:
        return bool(yields) and isinstance(yields[0], ast.YieldFrom)
    loop = loops[-1]
    if isinstance(yields[0], ast.YieldFrom):
        return any(part is yields[0] for part in ast.walk(loop))
    asks = isinstance(loop, ast.For) and line <= (loop.iter.end_lineno or 0)
    inside = [part for part in ast.walk(loop) if isinstance(part, ast.Continue)]
    return asks and not inside and any(yields[0] is getattr(statement, "value", None) for statement in loop.body)


def _add(counting: Any, number: int) -> bool:
    place = ctypes.c_ssize_t.from_address(id(counting) + object.__basicsize__)
    before = _count_of(counting)
    if place.value != before:
        return False
    place.value = before + number
    return True


def _count_of(counting: Any) -> int:
    _, (_, count) = counting.__reduce__()
    return int(count)
