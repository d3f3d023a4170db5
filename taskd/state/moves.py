"""Settles what lists and plain values are after an update, if not every rank has seen the end of that step.

settling.py does this for counters. Here are the values that it does not know: rows (rows.py), and what steps change
unseen (observed.py). Each rank tells what they were when the last step began, what they are now, and which of them
steps had changed before.

Failure modes: a rank lacks what the rest of the step has set; a rank's own value is replaced by another rank's.
Invariants: a value is only taken if it was the same on all ranks when the step began, and is the same on all that have
seen its end. A row must have been the same before all steps that are remembered, too: it may begin anew in each loop.
The value must have moved before, or two such ranks tell it. No code is taken, but a rank may have the same already.
What a rank may lack, and nobody can tell it, is refused by its name. All ranks come to the same conclusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from taskd.errors import PeerError
from taskd.state.marks import is_of_code
from taskd.state.plain import can_be_given, shortened
from taskd.state.rows import Rows

MOST_BYTES = 1 << 14
"""Of a longer value, only a digest is told."""


@dataclass(slots=True, frozen=True)
class Moves:
    """What one rank knows."""

    lacks: bool
    """The rank has not seen the end of the last step."""
    before: Rows | None = None
    """What steps had changed before the last step. None: that is not known."""
    now: Rows = field(default_factory=dict)
    moved: list[str] = field(default_factory=list)
    """The names of values that had moved before the last step."""
    unknown: list[str] = field(default_factory=list)
    """The names of values that may miss a move in the last step."""
    new: list[str] = field(default_factory=list)
    """The names of values that have moved in the last step for the first time."""
    history: Sequence[tuple[int, dict[str, int]]] = ()
    """Digests of rows before this step and those before it."""

    def told(self) -> list[Any]:
        """Return what is sent to the other ranks."""
        before = None if self.before is None else shortened(self.before, MOST_BYTES)
        return [self.lacks, before, shortened(self.now, MOST_BYTES), self.moved, self.unknown, self.new, self.history]

    @classmethod
    def heard(cls, told: Any) -> Moves | None:
        """Read what another rank has told. None: it has not looked. Raises PeerError if that is something else."""
        try:
            return None if told is None else cls(*told)
        except TypeError as error:
            raise PeerError(f"what another rank says of its values could not be read: {error}") from error


def settle_moves(told_by: Sequence[Moves | None], rank: int) -> tuple[Rows, set[str]]:
    """Return what this rank takes, and the names of what nobody can know. None: that rank has not looked."""
    ranks = [one for one in told_by if one is not None]
    take, refused = Rows(), set[str]()
    told = sorted({name for one in ranks if not one.lacks for name in one.now})
    new = [{*one.new} for one in ranks if not one.lacks]  # others than these are of some ranks only
    own = {name for name in told if _is_own(ranks, name)}
    new_to_all = {name for name in set[str]().union(*new).intersection(*new) if not _has_moved(ranks, name)}
    for at, one in enumerate(told_by):
        if one is None or not one.lacks:
            continue
        known = {name: value for name in told if name not in own and (value := _agreed(ranks, name)) is not None}
        there = {name for name, value in known.items() if is_of_code(value) and one.now.get(name) == value}
        agreed = {name: value for name, value in known.items() if name in there or can_be_given(value)}
        refused.update(name for name in one.unknown if name not in agreed)
        before = one.before or {}
        refused.update(name for name in new_to_all - agreed.keys() if one.now.get(name) == before.get(name))
        if at == rank:
            take = {name: value for name, value in agreed.items() if one.now.get(name) != value}
    return take, refused


def _agreed(ranks: Sequence[Moves], name: str) -> bytes | None:
    """Return the value that all have which have seen the end of the step, if it is the same for each rank."""
    now = [one.now.get(name) for one in ranks if not one.lacks]
    before = [one.before.get(name) for one in ranks if one.before is not None]
    if not now or now[0] is None:
        return None
    if any(value != now[0] for value in now) or any(value != before[0] for value in before):
        return None
    return now[0] if len(now) > 1 or _has_moved(ranks, name) else None


def _is_own(ranks: Sequence[Moves], name: str) -> bool:
    """Whether it was each rank's own before some step, although it may be alike now: it may begin anew in each loop."""
    digests: dict[int, set[int]] = {}
    for one in ranks:
        for number, rows in one.history:
            if name in rows:
                digests.setdefault(number, set()).add(rows[name])
    return any(len(found) > 1 for found in digests.values())


def _has_moved(ranks: Sequence[Moves], name: str) -> bool:
    return any(name in one.moved for one in ranks)
