"""Settles what a script's counters are after an update, if not every rank has seen the end of that step.

A newcomer may go on after an update with a record that was written before it. A survivor may have stopped in the middle
of that step, after its update and before the rest of its body. Both lack what the rest of the body does to the script's
counters (variables.py). So all ranks tell each other, once after a repair, what their counters were when the last steps
began and what they are now. Each rank comes to the same conclusion from the same tables.

Failure modes: a count is taken from a rank that had not counted yet; a rank's own value (a sum of losses) is replaced
by another rank's, because the two were equal by chance or at the loop's beginning; no rank has seen the step's end, and
all miss the same count. Invariants: a counter that differed between two ranks in any of the told steps is each rank's
own and is never touched. If it misses the last step's move and is used for more than to be shown, it is refused by its
name. A value that is taken was the same on all ranks. It has moved in that way before, or two ranks tell it. It comes
from ranks that have seen the end of the step, if there are any. A counter that is the same on all and wrong is refused
by its name. A counter that may be right or wrong is left as it is and reported.

It sends nothing, and does not know in whose frames the counters are.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import Any

from taskd.errors import PeerError
from taskd.state import tree
from taskd.state.script import ELSEWHERE, LOCALS, PLACES, Number, Values

EARLY = 2
"""Up to this many updates, starting over loses hardly a step. So what is only reported later is refused here."""
STEADY = 2
"""After it has moved in this many steps, a counter is expected to move in each step."""
History = dict[int, Number]
"""One rank's value of a counter at the beginning of steps, by the number of the step."""


@dataclass(slots=True, frozen=True)
class Table:
    """What one rank knows."""

    lacks: bool
    """The rank has not seen the end of the last step."""
    newcomer: bool
    """The rank has not seen anything of the last step."""
    looks: list[tuple[int, str, Values]]
    """For each of the last steps its number, function and counters, the oldest first. The last entry is now."""
    moves: list[Any] | None = None
    """What moves.py tells of other values."""

    def pack(self) -> bytes:
        """Return the table as bytes, to be sent."""
        return tree.flatten([self.lacks, self.newcomer, self.looks, self.moves], "counters of the script")[0]

    @classmethod
    def unpack(cls, data: bytes) -> Table:
        """Read what `pack` wrote. Raises PeerError if the data is something else."""
        try:
            return cls(*tree.unflatten(data, []))
        except TypeError as error:
            raise PeerError(f"what another rank says of its variables could not be read: {error}") from error

    def history(self, place: int, name: str) -> History:
        """Return the history of one counter. Locals of another function are different counters."""
        return {
            number: values[place][name]
            for number, function, values in self.looks
            if name in values[place] and (place not in (LOCALS, ELSEWHERE) or function == self.looks[-1][1])
        }

    @property
    def knows(self) -> bool:
        """Whether the table has any counter."""
        return any(place for _, _, values in self.looks for place in values)


@dataclass(slots=True)
class Settled:
    """The common conclusion, seen from one rank."""

    take: Values = field(default_factory=lambda: [{} for _ in range(PLACES)])
    refused: set[str] = field(default_factory=set)
    """Names of counters whose value no rank can know."""
    unsure: set[str] = field(default_factory=set)
    """Names of counters that may be each rank's own, and were left as they are."""
    behind: set[str] = field(default_factory=set)
    """Names of numbers that are each rank's own, move in each step, and miss the last step on some rank."""
    shown: set[str] = field(default_factory=set)
    """Those among them that the script only shows."""
    alone: bool = False
    """Whether only this rank knows that something is refused."""

    def judge(self, used: Set[str], perhaps: Set[str]) -> None:
        """Start over because of what is behind, if it is used for more than to be shown. If it is perhaps used, say so.
        What is only shown may be behind."""
        self.refused |= self.behind & used
        self.unsure |= self.behind & perhaps - used
        self.shown = self.behind - used - perhaps

    def spare(self, names: Set[str]) -> None:
        """Do not start over because of these names, which the script only shows."""
        self.unsure |= self.refused & names
        self.refused -= names


def settle(tables: list[Table], rank: int, number: int) -> Settled:
    """Return what this rank has to take before this step."""
    settled = Settled()
    survivors = [table for table in tables if table.knows and not table.newcomer]
    first = number == 1 and bool(survivors) and all(table.lacks for table in survivors)
    for place in range(PLACES):
        for name in sorted({name for table in tables for _, _, values in table.looks for name in values[place]}):
            if first:
                settled.refused.add(name)  # no earlier step shows which of them move
                continue
            question = _Question(tables, [table.history(place, name) for table in tables], number)
            if (value := question.answer(rank)) is not None:
                settled.take[place][name] = value
            settled.refused.update([name] if question.refused else [])
            settled.unsure.update([name] if question.unsure else [])
            settled.behind.update([name] if question.is_behind() else [])
    return settled


class _Question:
    """The question what one counter is now."""

    def __init__(self, tables: list[Table], histories: list[History], number: int) -> None:
        self._tables, self._histories, self._number = tables, histories, number
        self.refused = self.unsure = False

    def answer(self, rank: int) -> Number | None:
        """Return the value that this rank takes. None: it takes nothing."""
        number, then = self._number, self._then()
        ranks = [*zip(self._tables, self._histories, strict=True)]
        whole = [history[number] for table, history in ranks if number in history and not table.lacks]
        left = [history for table, history in ranks if number in history and table.lacks and not table.newcomer]
        found = whole or [history[number] for history in left]
        if then is None or not found or self._is_own():
            return None
        moved = self._has_moved()
        if len(kinds(found)) > 1:
            if not whole:  # some of the stopped ranks had come further than others
                self._doubt(refuse=moved)
            return None
        [value] = kinds(found)
        if not whole and alike(value, then):
            self._doubt(refuse=moved and any(map(self._is_missing, left)))
            return None
        lacking = [at for at, (table, history) in enumerate(ranks) if table.lacks and self._differs(history, value)]
        halfway = [history for history in left if not alike(history[number], then) and self._differs(history, value)]
        if halfway or (lacking and not moved and len(found) == 1):
            self._doubt(refuse=bool(halfway) and (moved or len(found) > 1))
            return None
        return value if rank in lacking else None

    def _differs(self, history: History, value: Number | None) -> bool:
        return not alike(history.get(self._number), value)

    def _doubt(self, refuse: bool) -> None:
        self.refused |= refuse or self._number <= EARLY
        self.unsure |= not self.refused

    def is_behind(self) -> bool:
        """Whether it is each rank's own, and a rank that has not seen the end of the last step misses a move of it."""
        lacking = [history for table, history in zip(self._tables, self._histories, strict=True) if table.lacks]
        before = self._number - 1
        same = [one for one in lacking if before in one and alike(one.get(self._number), one[before])]
        return self._is_own() and any(map(self._is_missing, same))

    def _is_own(self) -> bool:
        steps = {number for history in self._histories for number in history if number < self._number}
        return any(len(kinds(history[at] for history in self._histories if at in history)) > 1 for at in steps)

    def _has_moved(self) -> bool:
        """Whether it moved, on all ranks together, before the last step. To appear counts as a move. Newcomers are left
        out, since their records know less."""
        seen = [
            [history.get(at) for at, _, _ in table.looks if at < self._number]
            for table, history in zip(self._tables, self._histories, strict=True)
            if not table.newcomer
        ]
        return any(len(kinds(values)) > 1 for values in seen)

    def _then(self) -> Number | None:
        """Return its value when the last step began, which is the same on all ranks."""
        before = self._number - 1
        return next((history[before] for history in self._histories if before in history), None)

    def _is_missing(self, history: History) -> bool:
        """Whether it moved in each of the steps before, so that a move is missing in this one."""
        at = [self._number - 1]
        while at[-1] - 1 in history and len(at) <= STEADY:
            at.append(at[-1] - 1)
        moves = [history[one] != history[one - 1] for one in at[:-1]]
        return all(moves) and len(moves) >= min(STEADY, self._number - 1)


def kinds(values: Iterable[Number | None]) -> list[Number | None]:
    """Return the different ones of these values."""
    found: list[Number | None] = []
    for value in values:
        if not any(alike(value, other) for other in found):
            found.append(value)
    return found


def alike(one: Number | None, other: Number | None) -> bool:
    """Whether two numbers are the same. 1 is not the same as 1.0, and NaN is the same as NaN."""
    return one is other or (type(one) is type(other) and (one == other or (one != one and other != other)))
