"""One look at the counters of a script (variables.py), and what a record keeps of it.

It is taken when a step is handed out. This module does NOT read the script.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Set
from dataclasses import dataclass, field, replace

import msgpack

from taskd.errors import PeerError
from taskd.state.leaves import GONE
from taskd.state.plain import can_be_given
from taskd.state.rows import Leaves, Rows, Take, Which, anew, as_they_were, in_place, replaced_in, same_in
from taskd.state.script import PLACES, Number, Values

MOST_BITS = 63
"""A whole number with more bits is not sent."""


@dataclass(slots=True)
class Look:
    """One look at the script, when a step was handed out."""

    number: int
    """The number of the step."""
    loop: int
    place: str
    """The function that contains the loop."""
    values: Values
    lacks: bool = False
    """This rank has not seen the end of the previous step."""
    handed: dict[str, int] = field(default_factory=dict)
    """Digests of values that the loop hands on and that are not numbers."""
    rows: dict[str, bytes] = field(default_factory=dict)
    """Lists of numbers and the like that steps gather."""
    leaves: Leaves = field(default_factory=dict)
    """The tensors in the rows, which no record has."""
    replaced: Set[Which] = frozenset()
    """Where steps have replaced a tensor in a row so far."""
    digests: dict[str, int] = field(default_factory=dict)
    """Digests of the rows, which are remembered for longer than these."""
    others: dict[str, bytes] | None = None
    """Other values that steps have changed (observed.py). None: nobody has looked."""
    moved: Set[str] = frozenset()
    """The names of rows and other values that steps have changed so far."""
    packed: bytes | None = None

    def is_beside(self, other: Look) -> bool:
        """Whether both looks are at the same loop."""
        return (self.loop, self.place) == (other.loop, other.place)

    def pack(self) -> bytes:
        """Return what the record keeps of this look."""
        if self.packed is None:
            values = list(map(fitting, self.values))
            rows = [self.rows, self.others, sorted(self.moved), sorted(self.replaced), self.digests]
            parts = [self.number, self.loop, self.place, values, self.handed, *rows]
            self.packed = msgpack.packb(parts)
        return self.packed

    def follows(self, before: Look) -> Look:
        """Note which rows have changed since the look before. Return this look."""
        if self.is_beside(before):  # otherwise what stands around the loops may have changed them
            both = self.others is not None and before.others is not None
            then, now = (before.every, self.every) if both else (before.rows, self.rows)
            self.moved = before.moved | (now.keys() - same_in(then, now))
        elif self.place == before.place:
            self.moved = before.moved
        if self.is_beside(before):
            self.replaced = before.replaced | replaced_in(before.leaves, self.leaves)
        return self

    @property
    def every(self) -> Rows:
        """The rows and the other values."""
        return {**(self.others or {}), **self.rows}

    def given(self) -> set[str]:
        """Return the names of rows and other values that can be given."""
        return {name for name, data in self.every.items() if data != GONE and can_be_given(data)}

    def without_given(self, names: Iterable[str]) -> set[str]:
        """Return those names that neither are rows and other values that can be given, nor are inside of them."""
        given = self.given()
        bases = {name: {name[: one.start()] for one in re.finditer(r"[.\[]", name)} | {name} for name in names}
        return {name for name, inside in bases.items() if not inside & given}

    def with_these(self, rows: Rows) -> Look:
        """Return a look that also has these rows and other values."""
        own = {name: data for name, data in rows.items() if name in self.rows}
        others = {name: data for name, data in rows.items() if name not in self.rows}
        leaves = {name: one for name, one in self.leaves.items() if name not in own}
        both = None if self.others is None else {**self.others, **others}
        return replace(self, rows={**self.rows, **own}, leaves=leaves, others=both)

    def without_others(self) -> Look:
        """Return a look that has only the counters and the rows."""
        return replace(self, others=None, moved=frozenset(), packed=None)

    def take(self, name: str, alone: bool) -> Take:
        """Return what is done about the tensors of a row when it is put back. `alone`: nothing shares those there."""
        if name in self.leaves:
            return as_they_were(self.leaves[name])
        return in_place({at for row, at in self.replaced if row == name}) if alone else anew

    def forget_rows(self) -> None:
        """Forget the rows and the other values, because a later look has them."""
        if self.rows or self.others:
            self.rows, self.leaves, self.others, self.packed = {}, {}, None, None


def unpacked(data: bytes) -> Look:
    """Return the look that was packed. Raises PeerError."""
    try:
        number, loop, place, values, handed, rows, others, moved, replaced, digests = msgpack.unpackb(data)
        numbers = [dict(values[at]) for at in range(PLACES)]
        look = Look(number, loop, place, numbers, handed=dict(handed), rows=dict(rows), moved=frozenset(moved))
        look.others, look.replaced = None if others is None else dict(others), frozenset(map(tuple, replaced))
        look.digests = dict(digests)
        return look
    except (ValueError, TypeError, IndexError, msgpack.UnpackException) as error:
        raise PeerError(f"the counters of the script in the record of this rank are none: {error}") from error


def fitting(place: dict[str, Number]) -> dict[str, Number]:
    """Return those numbers that can be sent."""
    return {name: value for name, value in place.items() if type(value) is float or _is_short(int(value))}


def _is_short(value: int) -> bool:
    return value.bit_length() <= MOST_BITS
