"""Sees whether some of very many objects have changed: of these, only a digest of plain values is compared.

A job may keep a record for each sample of a data set. To look at each of them by its name would take too long. The
digest shows that something there is otherwise, and no repair can give what was there.

Some of the objects of a large crowd are looked at, spread over all of it. It does NOT see what is deeper inside them.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

from taskd.state.places import space_of
from taskd.state.plain import is_scalar, mark, packed

MOST = 512
"""So many items of a list or dict are looked at one by one. Of more, less than twice as many are compared together."""
_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))


class Crowd:
    """Some objects that are looked at together."""

    __slots__ = ("items",)

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items


def crowd_of(one: Any) -> Crowd | None:
    """Return the objects in this list or dict, if they are to be looked at together."""
    kind = type(one)
    if kind not in (list, tuple, dict, deque) or len(one) <= MOST:
        return None
    every = len(one) // MOST
    few = one[::every] if kind in (list, tuple) else [*islice(one.values() if kind is dict else one, 0, None, every)]
    return None if is_scalar(few[0]) else Crowd(few)


def mark_of_crowd(crowd: Crowd) -> bytes:
    """Return a mark of what these objects keep."""
    values = [[value for value in _values_of(item) if type(value) in _PLAIN] for item in crowd.items]
    return mark(f"{len(values)} objects {zlib.crc32(packed(values) or b'')}")


def _values_of(item: Any) -> Iterable[Any]:
    if type(item) in (list, tuple):
        return item  # type: ignore[no-any-return]
    return [*(item if type(item) is dict else space_of(item)).values()]
