"""What a script's counters are after an update that not every rank has seen its step's end of.

A newcomer may go on behind an update with a record that was written before it; a survivor may have been left in the
middle of that step, between its update and what its body does then. Both lack what the rest of the body does to the
script's counters (variables.py). So all ranks tell each other, once after a repair, what their counters were when the
last steps began and what they are now; each comes to the same conclusion from the same tables.

Failure modes: a count is taken from a rank that had not counted yet; what is a rank's own (a sum of losses) is replaced
by another rank's, because the two were equal by chance or at the loop's beginning; nobody has seen the step's end, and
all miss the same. Invariants: what was unlike on two ranks in any of the steps that they tell of is each rank's own
and is never touched. What is taken was alike on all ranks, has moved so before or is told by two of them, and comes
from ranks that have seen the end of the step, where there is one. What is alike and wrong is refused by its name; what
may be right or wrong is left and said.

It sends nothing, and does not know whose frames the counters are in.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from taskd.errors import PeerError
from taskd.state import tree
from taskd.state.script import ELSEWHERE, LOCALS, PLACES, Number, Values

EARLY = 2
"""Updates before which hardly a step is lost by starting over, and what is left and said later is refused."""
STEADY = 2
"""Steps in which a counter has moved, after which it is expected to."""
History = dict[int, Number]
"""What one rank's number was when steps began, by their number."""


@dataclass(slots=True, frozen=True)
class Table:
    """What one rank knows."""

    lacks: bool
    """It has not seen the end of the last step."""
    newcomer: bool
    """It has not seen anything of it."""
    looks: list[tuple[int, str, Values]]
    """What the last steps have found and in which function, the oldest first; the last one is now."""

    def pack(self) -> bytes:
        """As it travels."""
        return tree.flatten([self.lacks, self.newcomer, self.looks], "counters of the script")[0]

    @classmethod
    def unpack(cls, data: bytes) -> Table:
        """What `pack` wrote. Raises PeerError if it is none."""
        try:
            return cls(*tree.unflatten(data, []))
        except TypeError as error:
            raise PeerError(f"what another rank says of its variables could not be read: {error}") from error

    def history(self, place: int, name: str) -> History:
        """Of one counter. Locals of another function are other ones."""
        return {
            number: values[place][name]
            for number, function, values in self.looks
            if name in values[place] and (place not in (LOCALS, ELSEWHERE) or function == self.looks[-1][1])
        }

    @property
    def knows(self) -> bool:
        """Whether it tells of any counter."""
        return any(place for _, _, values in self.looks for place in values)


@dataclass(slots=True)
class Settled:
    """What all have concluded, seen from one rank."""

    take: Values = field(default_factory=lambda: [{} for _ in range(PLACES)])
    refused: set[str] = field(default_factory=set)
    """Names of what nobody can know."""
    unsure: set[str] = field(default_factory=set)
    """Names of what may be each rank's own, and was left."""

    def spare(self, names: Set[str]) -> None:
        """Start over for none of these, which are only shown."""
        self.unsure |= self.refused & names
        self.refused -= names


def settle(tables: list[Table], rank: int, number: int) -> Settled:
    """In front of this step."""
    settled = Settled()
    survivors = [table for table in tables if table.knows and not table.newcomer]
    first = number == 1 and bool(survivors) and all(table.lacks for table in survivors)
    for place in range(PLACES):
        for name in sorted({name for table in tables for _, _, values in table.looks for name in values[place]}):
            if first:
                settled.refused.add(name)  # there is no step from which it could be told which of them move
                continue
            question = _Question(tables, [table.history(place, name) for table in tables], number)
            if (value := question.answer(rank)) is not None:
                settled.take[place][name] = value
            settled.refused.update([name] if question.refused else [])
            settled.unsure.update([name] if question.unsure else [])
    return settled


class _Question:
    """What one counter is now."""

    def __init__(self, tables: list[Table], histories: list[History], number: int) -> None:
        self._tables, self._histories, self._number = tables, histories, number
        self.refused = self.unsure = False

    def answer(self, rank: int) -> Number | None:
        """What this rank takes; None: nothing."""
        number, then = self._number, self._then()
        ranks = [*zip(self._tables, self._histories, strict=True)]
        whole = [history[number] for table, history in ranks if number in history and not table.lacks]
        left = [history for table, history in ranks if number in history and table.lacks and not table.newcomer]
        found = whole or [history[number] for history in left]
        if then is None or not found or self._is_own():
            return None
        moved = self._has_moved()
        if len(kinds(found)) > 1:
            if not whole:  # some of those that were left had come further than others
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

    def _is_own(self) -> bool:
        steps = {number for history in self._histories for number in history if number < self._number}
        return any(len(kinds(history[at] for history in self._histories if at in history)) > 1 for at in steps)

    def _has_moved(self) -> bool:
        """On all together, before the last step; to come anew counts. A newcomer's record knows less of it."""
        seen = [
            [history.get(at) for at, _, _ in table.looks if at < self._number]
            for table, history in zip(self._tables, self._histories, strict=True)
            if not table.newcomer
        ]
        return any(len(kinds(values)) > 1 for values in seen)

    def _then(self) -> Number | None:
        """What it was when the last step began; alike on all."""
        before = self._number - 1
        return next((history[before] for history in self._histories if before in history), None)

    def _is_missing(self, history: History) -> bool:
        """Whether it has moved in each of the steps before, which it has not in this one."""
        at = [self._number - 1]
        while at[-1] - 1 in history and len(at) <= STEADY:
            at.append(at[-1] - 1)
        moves = [history[one] != history[one - 1] for one in at[:-1]]
        return all(moves) and len(moves) >= min(STEADY, self._number - 1)


def kinds(values: Iterable[Number | None]) -> list[Number | None]:
    """The different ones."""
    found: list[Number | None] = []
    for value in values:
        if not any(alike(value, other) for other in found):
            found.append(value)
    return found


def alike(one: Number | None, other: Number | None) -> bool:
    """Whether two numbers are the same: 1 is not 1.0, and what is no number is equal to itself."""
    return one is other or (type(one) is type(other) and (one == other or (one != one and other != other)))
