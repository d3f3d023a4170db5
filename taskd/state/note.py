"""The note that a rank takes when a loop begins, and what a newcomer concludes from the notes of all ranks.

After a repair, all ranks tell each other their notes once. Of numbers and texts they tell only what is still the same.
A newcomer may have computed another value than all other ranks. It takes their value if the loops around this one set
it. It refuses, and all start over, if those loops do not set it, or if the value cannot be given. The same is true of a
buffer that all held alike when the previous loop ended, like the mask of a pruned layer. The reason: a script
may have read the value once, or count its epochs from it, and then one value does not repair that.
A newcomer's predecessor is the process that it replaces. In the loop of its predecessor, a newcomer takes what the
predecessor noted. From others it takes only what no note of its predecessor tells. The value must also have been the
same on all ranks when the previous loop began. If only one other rank tells it, it must have changed by then.

Failure modes: a value that each rank has for itself (a time, a path, a port, noise) is taken from another rank; the
word of one rank is taken for everybody's; a rank's own value was lost with its predecessor, and no rank reports it.
Invariants: a value that differs between two of the others is never touched. A newcomer refuses a value in three cases.
Two told the same value, of which the predecessor may be one. Or all ranks had the same value before. Or it has changed
on others since the previous loop, the newcomer has another value, and no note of its predecessor tells the old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from taskd.errors import PeerError
from taskd.state import tree
from taskd.state.leaves import GONE
from taskd.state.plain import Noted, can_be_given, shortened

_TOLD_BYTES = 4096
"""Most bytes of one value that is told. The others get a digest of a longer one."""
_ENDED_BYTES = 1 << 18
"""Most bytes of what is kept of loops that are over. Of a longer history, the last loops are kept."""
_COMPARED_BYTES = 64
"""The same limit for values that are only compared."""


@dataclass(slots=True, frozen=True)
class Note:
    """What one loop found when it began."""

    loop: int = 0
    """The number of the loop, from 1."""
    found: dict[str, int] = field(default_factory=dict)
    """Digests of the values that are not plain (found.py)."""
    sets: Noted = field(default_factory=dict)
    """The plain values that the loops around it set (around.py)."""
    finds: Noted = field(default_factory=dict)
    """The other plain values that it uses."""
    moved: Noted = field(default_factory=dict)
    """The values it uses that have changed since the previous loop ended (leaves.py)."""
    buffers: dict[str, list[int]] = field(default_factory=dict)
    """Digests of the registered models' buffers: when the previous loop ended, and when this one began."""
    left: bytes = b""
    """The script's counters when this rank came to the end of this loop, as variables.py packs them. Not told."""
    ended: dict[int, bytes] = field(default_factory=dict)
    """By the number of a loop that is over: the counters and rows that this rank had there at its end. Not told."""

    def parts(self) -> list[Any]:
        """Return the fields, in the form in which they are kept."""
        ended = [*self.ended.items()]
        return [self.loop, self.found, self.sets, self.finds, self.moved, self.buffers, self.left, ended]

    @classmethod
    def of(cls, parts: list[Any]) -> Note:
        """Return the note that these parts are of. Raises TypeError or ValueError."""
        loop, found, sets, finds, moved, buffers, left, ended = parts
        return cls(loop, {**found}, {**sets}, {**finds}, {**moved}, {**buffers}, left, dict(ended))

    def leaves(self, counters: bytes, rows: bytes) -> Note:
        """Return the note with what this rank has at the end of this loop: its counters, and those with its rows."""
        ended, left = {self.loop: rows}, _ENDED_BYTES - len(rows)
        for number, one in sorted(self.ended.items(), reverse=True):
            left -= len(one)
            if number < self.loop and left >= 0:
                ended[number] = one
        return replace(self, left=counters, ended=ended)

    def short(self) -> Note:
        """Return the note in the form that is told to the others: long values become digests."""
        sets, finds = shortened(self.sets, _TOLD_BYTES), shortened(self.finds, _TOLD_BYTES)
        return Note(self.loop, self.found, sets, finds, shortened(self.moved, _COMPARED_BYTES), self.buffers)

    def unlike(self, mine: Note, leaves: Noted) -> list[str]:
        """Return the names of values that differ in a newcomer that begins the same loop, and that cannot be given to
        it. `leaves`: all plain values that the loop uses."""
        digests = [name for name, data in self.sets.items() if not can_be_given(data)]
        return sorted(
            {name for name in digests if mine.sets.get(name) != self.sets[name]}
            | {name for name in self.found.keys() & mine.found.keys() if self.found[name] != mine.found[name]}
            | {name for name in self.moved.keys() - self.sets.keys() if leaves.get(name, GONE) != self.moved[name]}
        )


@dataclass(slots=True)
class Told:
    """What one rank tells all ranks after a repair."""

    lacks: bool = False
    """This rank has not seen the end of the previous step (settling.py)."""
    newcomer: bool = False
    note: Note = field(default_factory=Note)
    """The note of the current loop."""
    before: Note = field(default_factory=Note)
    """The note of a newcomer's predecessor."""
    earlier: Note = field(default_factory=Note)
    """The note of the previous loop."""
    unseen: list[str] = field(default_factory=list)
    """Names of values that have changed since the loop began, though its source does not show it."""

    def pack(self) -> bytes:
        """Return it as bytes, to be sent."""
        notes = [note.short().parts() for note in (self.note, self.before, self.earlier)]
        return tree.flatten([self.lacks, self.newcomer, *notes, self.unseen], "what a loop finds")[0]

    @classmethod
    def unpack(cls, data: bytes) -> Told:
        """Read what `pack` wrote. Raises PeerError if the data is something else."""
        try:
            lacks, newcomer, note, before, earlier, unseen = tree.unflatten(data, [])
            return cls(lacks, newcomer, Note.of(note), Note.of(before), Note.of(earlier), unseen)
        except (TypeError, ValueError) as error:
            raise PeerError(f"what another rank tells of its loop is nothing of that kind: {error}") from error

    @property
    def knows(self) -> bool:
        """Whether its predecessor has noted this loop."""
        return self.before.loop == self.note.loop

    def kept(self, name: str) -> bool:
        """Whether this loop has found the same as the previous one, on this rank or in its predecessor."""
        return self.earlier.finds.get(name) == self.note.finds[name]


def to_take(told: list[Told], rank: int) -> Noted:
    """Return what this newcomer takes from the others. A value that differed in the previous loop is a rank's own."""
    return {name: data for name, data in _lacking(told, rank).items() if can_be_given(data)}


def to_refuse(told: list[Told], rank: int, leaves: Noted) -> list[str]:
    """Return the names with which this newcomer must not go on. `leaves`: all plain values that its loop uses."""
    mine, others = told[rank], _others(told, rank)
    lacking = _lacking(told, rank)
    names = {name for name, data in lacking.items() if not can_be_given(data)}
    if not mine.knows:
        here, moved = shortened(leaves, _COMPARED_BYTES), [*chain(*(one.note.moved.items() for one in others))]
        unlike = {name for name, data in moved if here.get(name, GONE) != data}
        names |= {name for name in unlike if not _lies_in(name, lacking)}
        found = _agreed([one.note.found for one in others])
        names |= _unlike(mine.note.found, found) & _alike([one.earlier.found for one in (mine, *others)], found)
        names |= {*changed_otherwise(told, rank)}
    before = [mine.before.finds] if mine.knows else []
    if others and len(others) + len(before) > 1:
        unlike = _unlike(mine.note.finds, _agreed([*(one.note.finds for one in others), *before]))
        names |= {name for name in unlike if not all(one.kept(name) for one in (mine, *others))}
    return sorted(names)


def changed_otherwise(told: list[Told], rank: int) -> list[str]:
    """Return the names of buffers that were the same on all ranks when the previous loop ended, and are no longer on
    this one. A buffer that differed then is each rank's own."""
    others = [one for one in _others(told, rank) if one is not told[rank]]
    mine, agreed = told[rank].note.buffers, _agreed([one.note.buffers for one in others])
    known = ((name, there, mine.get(name, there)) for name, there in agreed.items())
    return sorted(name for name, there, here in known if here[0] == there[0] and here[1] != there[1])


def _lacking(told: list[Told], rank: int) -> Noted:
    """Return what all others have set, where this rank has another value or none."""
    mine, others = told[rank], _others(told, rank)
    if mine.knows:
        return {}
    agreed = _agreed([one.note.sets for one in others])
    alike = _alike([one.earlier.sets for one in (mine, *others)], agreed)
    if len(others) == 1:  # a rank's own value is the same on all, too, as long as it has its start value
        alike &= others[0].earlier.moved.keys()
    return {name: data for name, data in agreed.items() if name in alike and mine.note.sets.get(name) != data}


def as_said(name: str) -> str:
    """Return the name as the source has it, without the function that may stand in front of it."""
    return name.rpartition(": ")[2]


def _lies_in(name: str, others: Iterable[str]) -> bool:
    """Whether this name is one of those, or a part of one. The function in front of a name does not matter."""
    said = as_said(name)
    return any(said == other or said.startswith((f"{other}[", f"{other}.")) for other in map(as_said, others))


def _others(told: list[Told], rank: int) -> list[Told]:
    return [one for one in told if not one.newcomer and one.note.loop == told[rank].note.loop]


def _agreed(noted: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all of these have with the same value."""
    first = noted[0] if noted else {}
    return {name: data for name, data in first.items() if name in _alike(noted, [name])}


def _alike(noted: list[Mapping[str, Any]], names: Iterable[str]) -> set[str]:
    """Return the names for which all have the same value, or none has any."""
    return {name for name in names if all(one.get(name) == noted[0].get(name) for one in noted)}


def _unlike(mine: Mapping[str, Any], agreed: Mapping[str, Any]) -> set[str]:
    """Return the names for which this rank has another value than the agreed one."""
    return {name for name, data in agreed.items() if mine.get(name, data) != data}
