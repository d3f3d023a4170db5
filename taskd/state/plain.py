"""Plain values: numbers, text, flags, nothing, and lists, tuples and dicts of them. As bytes, and what ranks conclude
from each other's.

Once after a repair all ranks tell each other what they have noted when the loop began and is still so (around.py). A
newcomer that has reckoned something else than all others takes theirs, where the loops around this one set it, and
refuses where they do not: what a script reads once, or counts its epochs from, is not made good by one value. It takes
only what no note of its life before tells, and what was alike on all when the loop before that one began.

Failure modes: what is each rank's own (a time, a path, a port) is taken from another; one rank's word is taken for
everybody's. Invariants: what is unlike on two of the others is never touched. What is refused was told alike by two,
of which the newcomer's life before may be one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from taskd.errors import PeerError, UsageError
from taskd.state import tree

MOST_BYTES = 4096
"""Of one value."""
_SCALARS = (bool, int, float, str, type(None))
_NESTED = (list, tuple, dict)
_DEPTH = 3
_ITEMS = 512
Noted = dict[str, bytes]
"""By name."""


@dataclass(slots=True)
class Told:
    """What one rank tells all."""

    lacks: bool = False
    """It has not seen the end of the step before (settling.py)."""
    newcomer: bool = False
    loop: int = 0
    """In which it is."""
    sets: Noted = field(default_factory=dict)
    """What the loops around it set."""
    finds: Noted = field(default_factory=dict)
    """What else it finds there and uses."""
    before: Noted = field(default_factory=dict)
    """What of that a newcomer's life before has found."""
    knows: bool = False
    """A newcomer whose life before has noted this loop has what it set from there."""
    earlier: Noted = field(default_factory=dict)
    """What was set when the loop before this one began."""

    def pack(self) -> bytes:
        """As it travels."""
        parts = [self.lacks, self.newcomer, self.loop, self.sets, self.finds, self.before, self.knows, self.earlier]
        return tree.flatten(parts, "what a loop finds")[0]

    @classmethod
    def unpack(cls, data: bytes) -> Told:
        """What `pack` wrote. Raises PeerError if it is none."""
        try:
            return cls(*tree.unflatten(data, []))
        except TypeError as error:
            raise PeerError(f"what another rank tells of its loop is nothing of that kind: {error}") from error


def packed(value: Any) -> bytes | None:
    """None: it is not plain, or too large."""
    if not _is_plain(value, _DEPTH):
        return None
    try:
        data = tree.flatten(value, "a plain value")[0]
    except (UsageError, ValueError, OverflowError):
        return None
    return data if len(data) <= MOST_BYTES else None


def unpacked(data: bytes) -> Any:
    """What `packed` made."""
    return tree.unflatten(data, [])


def is_number(value: Any) -> bool:
    """Whether it is one, and no flag."""
    return type(value) in (int, float)


def is_scalar(value: Any) -> bool:
    """Whether it is plain and has no parts."""
    return type(value) in _SCALARS


def _is_plain(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind not in _NESTED or not depth or len(value) > _ITEMS:
        return False
    parts = [*value.keys(), *value.values()] if kind is dict else value
    return all(_is_plain(part, depth - 1) for part in parts)


def to_take(told: list[Told], rank: int) -> Noted:
    """What this rank, a newcomer, takes from the others. What was unlike in the loop before is each rank's own."""
    mine = told[rank]
    others = _others(told, mine.loop)
    if mine.knows:
        return {}
    agreed = _agreed([one.sets for one in others])
    alike = {name for name in agreed if len({one.earlier.get(name) for one in (mine, *others)}) == 1}
    return {name: data for name, data in agreed.items() if mine.sets.get(name) != data and name in alike}


def to_refuse(told: list[Told], rank: int) -> list[str]:
    """What this rank, a newcomer, must not go on with."""
    mine = told[rank]
    others = [one.finds for one in _others(told, mine.loop)]
    if not others or (len(others) == 1 and not mine.before):
        return []
    agreed = _agreed([*others, *([mine.before] if mine.before else [])])
    return sorted(name for name, data in agreed.items() if mine.finds.get(name, data) != data)


def _others(told: Iterable[Told], loop: int) -> list[Told]:
    return [one for one in told if not one.newcomer and one.loop == loop]


def _agreed(noted: list[Noted]) -> Noted:
    """What all of them have, and have alike."""
    first = noted[0] if noted else {}
    return {name: data for name, data in first.items() if all(one.get(name) == data for one in noted)}
