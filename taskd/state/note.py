"""What a rank has noted when a loop began, and what a newcomer concludes from the notes of all.

Once after a repair all ranks tell each other what they have noted, of the numbers and texts only what is still so. A
newcomer that has reckoned something else than all others takes theirs, where the loops around this one set it, and
refuses where they do not, or where it cannot be given: what a script reads once, or counts its epochs from, is not made
good by one value. It takes only what no note of its life before tells, and what was alike on all when the loop before
that one began; if one other alone tells it, only what had become another one by then. In the loop of its life before it
takes what it has noted itself.

Failure modes: what is each rank's own (a time, a path, a port, noise) is taken from another; one rank's word is taken
for everybody's; what is each rank's own was lost with its life before, and nobody says so. Invariants: what is unlike
on two of the others is never touched. What is refused was told alike by two, of which the newcomer's life before may be
one, or was alike on all before; or it has become another one on others since the loop before, the newcomer has it
otherwise, and no note of its own tells what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from taskd.errors import PeerError
from taskd.state import tree
from taskd.state.leaves import GONE
from taskd.state.plain import Noted, can_be_given, shortened

_TOLD_BYTES = 4096
"""Of one value; of a longer one all hear a digest."""
_COMPARED_BYTES = 64
"""The same, of what is only compared."""


@dataclass(slots=True, frozen=True)
class Note:
    """Of what a loop has found when it began."""

    loop: int = 0
    """Which one, from 1."""
    found: dict[str, int] = field(default_factory=dict)
    """Digests of what is no plain value (found.py)."""
    sets: Noted = field(default_factory=dict)
    """What is plain of what the loops around it set (around.py)."""
    finds: Noted = field(default_factory=dict)
    """What is plain of the rest that it uses."""
    moved: Noted = field(default_factory=dict)
    """What of all that it uses has become another one since the loop before had ended (found.py)."""

    def parts(self) -> list[Any]:
        """As it is kept."""
        return [self.loop, self.found, self.sets, self.finds, self.moved]

    def short(self) -> Note:
        """As it is told."""
        sets, finds = shortened(self.sets, _TOLD_BYTES), shortened(self.finds, _TOLD_BYTES)
        return Note(self.loop, self.found, sets, finds, shortened(self.moved, _COMPARED_BYTES))

    def unlike(self, mine: Note, leaves: Noted) -> list[str]:
        """What a newcomer that begins the same loop has otherwise, and cannot be given. `leaves`: all that is plain of
        what it uses."""
        digests = [name for name, data in self.sets.items() if not can_be_given(data)]
        return sorted(
            {name for name in digests if mine.sets.get(name) != self.sets[name]}
            | {name for name in self.found.keys() & mine.found.keys() if self.found[name] != mine.found[name]}
            | {name for name in self.moved.keys() - self.sets.keys() if leaves.get(name, GONE) != self.moved[name]}
        )


@dataclass(slots=True)
class Told:
    """What one rank tells all."""

    lacks: bool = False
    """It has not seen the end of the step before (settling.py)."""
    newcomer: bool = False
    note: Note = field(default_factory=Note)
    """Of the loop in which it is."""
    before: Note = field(default_factory=Note)
    """Of a newcomer's life before."""
    earlier: Note = field(default_factory=Note)
    """Of the loop before this one."""
    unseen: list[str] = field(default_factory=list)
    """What has changed since the loop began, and its source does not say so."""

    def pack(self) -> bytes:
        """As it travels."""
        notes = [note.short().parts() for note in (self.note, self.before, self.earlier)]
        return tree.flatten([self.lacks, self.newcomer, *notes, self.unseen], "what a loop finds")[0]

    @classmethod
    def unpack(cls, data: bytes) -> Told:
        """What `pack` wrote. Raises PeerError if it is none."""
        try:
            lacks, newcomer, note, before, earlier, unseen = tree.unflatten(data, [])
            return cls(lacks, newcomer, Note(*note), Note(*before), Note(*earlier), unseen)
        except (TypeError, ValueError) as error:
            raise PeerError(f"what another rank tells of its loop is nothing of that kind: {error}") from error

    @property
    def knows(self) -> bool:
        """Whether its life before has noted this loop."""
        return self.before.loop == self.note.loop


def to_take(told: list[Told], rank: int) -> Noted:
    """What this rank, a newcomer, takes from the others. What was unlike in the loop before is each rank's own."""
    return {name: data for name, data in _lacking(told, rank).items() if can_be_given(data)}


def to_refuse(told: list[Told], rank: int, leaves: Noted) -> list[str]:
    """What this rank, a newcomer, must not go on with. `leaves`: all that is plain of what its loop has found."""
    mine, others = told[rank], _others(told, rank)
    lacking = _lacking(told, rank)
    names = {name for name, data in lacking.items() if not can_be_given(data)}
    if not mine.knows:
        here, moved = shortened(leaves, _COMPARED_BYTES), [*chain(*(one.note.moved.items() for one in others))]
        unlike = {name for name, data in moved if here.get(name, GONE) != data}
        names |= {name for name in unlike if not _lies_in(name, lacking)}
        found = _agreed([one.note.found for one in others])
        names |= _unlike(mine.note.found, found) & _alike([one.earlier.found for one in (mine, *others)], found)
    before = [mine.before.finds] if mine.knows else []
    if others and len(others) + len(before) > 1:
        names |= _unlike(mine.note.finds, _agreed([*(one.note.finds for one in others), *before]))
    return sorted(names)


def _lacking(told: list[Told], rank: int) -> Noted:
    """What all others have set, and this rank has otherwise or not at all."""
    mine, others = told[rank], _others(told, rank)
    if mine.knows:
        return {}
    agreed = _agreed([one.note.sets for one in others])
    alike = _alike([one.earlier.sets for one in (mine, *others)], agreed)
    if len(others) == 1:  # what all begin with is alike, too, where each rank reckons its own
        alike &= others[0].earlier.moved.keys()
    return {name: data for name, data in agreed.items() if name in alike and mine.note.sets.get(name) != data}


def as_said(name: str) -> str:
    """As the source has it: a name may begin with the function that it stands in."""
    return name.rpartition(": ")[2]


def _lies_in(name: str, others: Iterable[str]) -> bool:
    """Whether this is one of those, or a part of it, whichever function it is looked at from."""
    said = as_said(name)
    return any(said == other or said.startswith((f"{other}[", f"{other}.")) for other in map(as_said, others))


def _others(told: list[Told], rank: int) -> list[Told]:
    return [one for one in told if not one.newcomer and one.note.loop == told[rank].note.loop]


def _agreed(noted: list[Mapping[str, Any]]) -> dict[str, Any]:
    """What all of them have, and have alike."""
    first = noted[0] if noted else {}
    return {name: data for name, data in first.items() if name in _alike(noted, [name])}


def _alike(noted: list[Mapping[str, Any]], names: Iterable[str]) -> set[str]:
    """Of which all say the same, or nothing."""
    return {name for name in names if all(one.get(name) == noted[0].get(name) for one in noted)}


def _unlike(mine: Mapping[str, Any], agreed: Mapping[str, Any]) -> set[str]:
    """Which this rank has, too, and otherwise."""
    return {name for name, data in agreed.items() if mine.get(name, data) != data}
