"""What the ranks of an attempt hold, by their own word, and the state from which the job goes on.

Each rank says how many updates it has when it parks. What can go wrong, and what follows:

- *A survivor was stopped inside its update*: it holds nothing of use, says why, and fetches what others hold.
- *No survivor holds a whole state*: nothing is agreed upon, and only a strategy that starts all ranks again is left.

Invariant: the agreed updates are held by every source. Not here: how a state gets to whoever lacks it (worker), and
when ranks are asked (attempt).
"""

from __future__ import annotations

from taskd.core.messages import Fetch, RankReport


class Holdings:
    """The updates that each rank holds, and what was agreed upon. `newcomers` hold no state yet."""

    def __init__(self, ranks: tuple[int, ...], newcomers: frozenset[int]) -> None:
        self._ranks = ranks
        self._survivors = [rank for rank in ranks if rank not in newcomers]
        self._held: dict[int, int] = {}  # by rank, as said when it parked
        self.known = False  # one that has parked holds a whole state
        self.updates = -1
        self.fetches: tuple[Fetch, ...] = ()
        self.complete: set[int] = set()  # ranks that hold a whole state in this epoch
        self._useless = ""  # why a survivor holds nothing of use, in its own words

    def parked(self, report: RankReport) -> bool:
        """A rank has parked, and says what it holds. True: it is the first one with a whole state."""
        self._held[report.rank] = report.updates if report.ok else -1
        self._useless = self._useless or report.reason
        first = report.ok and report.updates >= 0 and not self.known
        self.known = self.known or first
        return first

    def agree(self) -> None:
        """The newest state that a survivor holds whole is the one to go on from; whoever lacks it fetches it."""
        self.updates = max((self._held.get(rank, -1) for rank in self._survivors), default=-1)
        if self.updates < 0:
            return
        sources = [rank for rank in self._survivors if self._held.get(rank, -1) == self.updates]
        self.complete = set(sources)
        lacking = [rank for rank in self._ranks if rank not in self.complete]
        self.fetches = tuple(Fetch(rank, sources[at % len(sources)]) for at, rank in enumerate(lacking))

    def nobody(self) -> bool:
        """No survivor has said that it holds a whole state."""
        return all(self._held.get(rank, -1) < 0 for rank in self._survivors)

    @property
    def why_useless(self) -> str:
        """Why no survivor holds one, in brackets, if somebody has said so."""
        return f" ({self._useless})" if self._useless else ""
