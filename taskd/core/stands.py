"""The ranks that make no progress, as their nodes report them: since when, what their processes do, which ranks wait.

A part of hangs.py, which decides what follows. A pause counts only as far as every node has confirmed it, so late or
lost messages make it shorter and never longer. This module knows no time limit except STILL_STOPPED_SEEN_NS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from taskd.core import limits, waits
from taskd.core.membership import Membership
from taskd.core.messages import Place, Still
from taskd.core.types import Doing, Phase
from taskd.core.waits import Waits

OUTSIDE = (Doing.STOPPED, Doing.TRACED)
"""The process was stopped from outside: this is no pause of the job's own."""
_WORDS = {
    Doing.UNSEEN: "cannot be looked at",
    Doing.WORKS: "works",
    Doing.COMPILES: "compiles",
    Doing.SLEEPS: "sleeps",
    Doing.BLOCKED: "is held in the kernel",
    Doing.HOLDS_GIL: "lets no other Python thread of it run",
    Doing.STOPPED: "is stopped by a signal (SIGCONT lets it go on)",
    Doing.TRACED: "is stopped by a debugger",
}
_MOST_NAMED = 3


@dataclass(slots=True, eq=False)
class Stand:
    """One rank that makes no progress."""

    still: Still
    since: int
    doing_since: int
    places: tuple[Place, ...]
    phase: Phase

    @property
    def busy(self) -> bool:
        """Whether it waits for no other rank."""
        return not waits.waits_in(self.places)


class Stands:
    """All ranks of one job that make no progress."""

    def __init__(self, members: Membership) -> None:
        self._members = members
        self.by_rank: dict[int, Stand] = {}
        self.told_at: dict[str, int] = {}
        """When each node has last reported its ranks."""
        self.outside: Counter[Phase] = Counter()
        """Phases of the ranks that are still and wait for no other rank."""

    def clear(self) -> None:
        """Forget everything."""
        self.by_rank.clear()
        self.told_at.clear()
        self.outside.clear()

    def put(self, rank: int, told: Still | None, places: tuple[Place, ...], at: int) -> None:
        """Take what was reported of one rank. None: it makes progress."""
        known = self.by_rank.pop(rank, None)
        if known is not None and known.busy:
            self.outside[known.phase] -= 1
        if told is None:
            return
        report = self._members.ranks[rank].report
        same = known is not None and known.still.mark == told.mark
        since = known.since if same and known is not None else at - told.still_ms * limits.MS
        doing_since = at - told.doing_ms * limits.MS
        if same and known is not None and known.still.doing is told.doing:
            doing_since = max(known.doing_since, doing_since)
        stand = Stand(told, since, max(doing_since, since), places, report.phase if report is not None else Phase.SETUP)
        self.by_rank[rank] = stand
        if stand.busy:
            self.outside[stand.phase] += 1

    @property
    def all(self) -> bool:
        """Whether every rank stands still."""
        return len(self.by_rank) == self._members.world_size

    def do(self, doing: Doing) -> bool:
        """Whether any of these ranks does this."""
        return any(stand.still.doing is doing for stand in self.by_rank.values())

    def confirmed(self, since: int, ranks: Iterable[int] = ()) -> int:
        """Return until when the nodes of these ranks, or of all, have confirmed that they are still."""
        return min(self._told_of(rank, since) for rank in ranks or self.by_rank)

    def waits(self) -> Waits:
        """Return which ranks wait for which."""
        return waits.find(self._places(), self._members.world_size)

    def stopped(self) -> list[int]:
        """Return the ranks that were seen to be stopped from outside for long enough."""
        outside = [(rank, stand) for rank, stand in sorted(self.by_rank.items()) if stand.still.doing in OUTSIDE]
        seen_ns = limits.STILL_STOPPED_SEEN_NS
        return [rank for rank, one in outside if self._told_of(rank, one.since) - one.doing_since >= seen_ns]

    def all_wait_for(self, rank: int) -> bool:
        """Whether all other ranks wait for this one, as far as their places tell."""
        return waits.all_wait_for(rank, self._places(), self._members.world_size)

    def _places(self) -> dict[int, tuple[Place, ...]]:
        return {rank: stand.places for rank, stand in self.by_rank.items()}

    def _told_of(self, rank: int, since: int) -> int:
        return self.told_at.get(self._members.ranks[rank].where, since)

    def of_processes(self, culprits: Iterable[int]) -> str:
        """`; process 4711 of rank 1 on node-0 is stopped by a signal`."""
        text = ""
        for rank in list(culprits)[:_MOST_NAMED]:
            record, still = self._members.ranks[rank], self.by_rank[rank].still
            more = f" {still.words}" if still.words else ""
            text += f"; process {record.pid} of rank {rank} on {record.where} {_WORDS[still.doing]}{more}"
        return text
