"""What the ranks of an attempt hold, by their own word, and the state from which the job goes on.

Each rank says how many updates it has when it parks, and of which part of the model: in a job whose model is divided
among ranks (by pipeline stages, say) only the ranks of one part hold the same. What can go wrong, and what follows:

- *A survivor was stopped inside its update*: it holds nothing of use, says why, and fetches what others of its part
  hold.
- *No survivor holds a whole state*: nothing is agreed upon, and only a strategy that starts all ranks again is left.
- *All ranks of a part are gone*: the same, for nobody else has what they had.
- *One part has made an update that no rank of another one has*: the same. Nobody could go back to the one before.

Invariants: the agreed updates are held by every source; a rank fetches from one of its own part, and there is such a
source in each part. Not here: how a state gets to whoever lacks it (worker), and when ranks are asked (attempt).
"""

from __future__ import annotations

from taskd.core.messages import Fetch, RankReport
from taskd.core.words import rank_words, verb


class Holdings:
    """The updates that each rank holds, and what was agreed upon. `newcomers` hold no state yet."""

    def __init__(self, ranks: tuple[int, ...], newcomers: frozenset[int]) -> None:
        self._ranks = ranks
        self._survivors = [rank for rank in ranks if rank not in newcomers]
        self._held: dict[int, int] = {}  # by rank, as said when it parked
        self._parts: dict[int, int] = {}  # likewise
        self.known = False  # one that has parked holds a whole state
        self.updates = -1
        self.fetches: tuple[Fetch, ...] = ()
        self.complete: set[int] = set()  # ranks that hold a whole state in this epoch
        self._useless = ""  # why what survivors hold is of no use: in the words of one of them, or ours

    def parked(self, report: RankReport) -> bool:
        """A rank has parked, and says what it holds. True: it is the first one with a whole state."""
        self._held[report.rank] = report.updates if report.ok else -1
        self._parts[report.rank] = report.part
        self._useless = self._useless or report.reason
        first = report.ok and report.updates >= 0 and not self.known
        self.known = self.known or first
        return first

    def agree(self) -> None:
        """The newest state that survivors hold whole is the one to go on from; whoever lacks it fetches it."""
        newest = dict.fromkeys(self._members(), -1)
        for rank in self._survivors:
            part = self._parts.get(rank, 0)
            newest[part] = max(newest[part], self._held.get(rank, -1))
        self.updates = max(newest.values(), default=-1)
        if self.updates >= 0 and min(newest.values()) < self.updates:
            self._useless = self._apart(newest)
            self.updates = -1
        if self.updates < 0:
            return
        self.complete = {rank for rank in self._survivors if self._held.get(rank, -1) == self.updates}
        self.fetches = tuple(fetch for ranks in self._members().values() for fetch in self._within(ranks))

    def _members(self) -> dict[int, list[int]]:
        """The ranks of each part."""
        found: dict[int, list[int]] = {}
        for rank in self._ranks:
            found.setdefault(self._parts.get(rank, 0), []).append(rank)
        return found

    def _within(self, ranks: list[int]) -> list[Fetch]:
        """Whoever lacks the agreed state gets it from one that has it; all are of one part."""
        sources = [rank for rank in ranks if rank in self.complete]
        lacking = [rank for rank in ranks if rank not in self.complete]
        return [Fetch(rank, sources[at % len(sources)]) for at, rank in enumerate(lacking)]

    def _apart(self, newest: dict[int, int]) -> str:
        """Why the parts of the model cannot go on together, by what is the newest that a rank of each holds."""
        part = min(newest, key=lambda one: newest[one])
        ranks, held = self._members()[part], newest[part]
        others = f"of the part of the model that {rank_words(ranks)} {verb(len(ranks), 'has', 'have')}"
        return f"{others}, nobody holds {'anything' if held < 0 else f'more than {held} of {self.updates} updates'}"

    def nobody(self) -> bool:
        """No survivor has said that it holds a whole state."""
        return all(self._held.get(rank, -1) < 0 for rank in self._survivors)

    @property
    def why_useless(self) -> str:
        """Why no survivor holds one, in brackets, if somebody has said so."""
        return f" ({self._useless})" if self._useless else ""
