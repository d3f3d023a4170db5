"""The states that the ranks of an attempt hold, by their own reports, and the state from which the job continues.

When a rank parks, it reports how many updates it has, and which part of the model it holds. In a job that divides its
model among ranks (by pipeline stages, for example), only the ranks of one part hold the same state. A part may also be
*kept*: in copies that outlive a process, from which a rank brings the part to some numbers of updates by itself.
Failure modes, and what follows:

- *A survivor was stopped inside its update*: its state is useless. It says why, and fetches the state of another rank
  of its part.
- *No survivor holds a whole state*: no state is agreed on. Only a strategy that starts all ranks again is left. Kept
  parts do not help, since what all ranks have in common is not kept.
- *Ranks were found to hold different things*: no rank takes another's state, so nothing is agreed on if one lacks it.
- *All ranks of a part are gone*: its newcomers bring it to the agreed updates by themselves. If none of them can, the
  same, since no other rank has their state.
- *One part has made an update that no rank of another part has*: the ranks of the other part make it by themselves. If
  none of them can, the same. No rank can go back to the previous update.

Invariants: every source holds the agreed updates, or brings itself to them before it gives. A rank fetches from a rank
of its own part or from itself, and each part has such a source. Not here: how the state is sent to a rank that lacks it
(worker), and when ranks are asked (attempt).
"""

from __future__ import annotations

from taskd.core.messages import Fetch, RankReport
from taskd.core.starts_over import StartsOver
from taskd.core.types import NOTHING_KEPT, Kept
from taskd.core.words import rank_words, verb


class Holdings:
    """The updates that each rank holds, and the agreed updates. `newcomers` hold no state yet. `over` knows whether a
    rank may take another's state."""

    def __init__(self, ranks: tuple[int, ...], newcomers: frozenset[int], over: StartsOver) -> None:
        self._ranks = ranks
        self._over = over
        self._survivors = [rank for rank in ranks if rank not in newcomers]
        self._held: dict[int, int] = {}  # updates by rank, as reported when it parked
        self._parts: dict[int, int] = {}  # part of the model by rank, likewise
        self._kept: dict[int, Kept] = {}  # likewise
        self.known = False  # a parked survivor holds a whole state
        self.updates = -1
        self.fetches: tuple[Fetch, ...] = ()
        self.complete: set[int] = set()  # ranks that hold a whole state in this epoch
        self._useless = ""  # why the survivors' states are useless: in a survivor's words, or ours

    def know(self, parts: dict[int, int]) -> None:
        """Take the parts of ranks that may never park."""
        self._parts.update(parts)

    def parked(self, report: RankReport) -> bool:
        """A rank has parked, and reports what it holds. Return True if it is the first one with a whole state."""
        self._held[report.rank] = report.updates if report.ok else -1
        self._parts[report.rank] = report.part
        self._kept[report.rank] = Kept(report.kept_from, report.kept_to)
        self._useless = self._useless or report.reason
        first = report.ok and report.updates >= 0 and not self.known
        self.known = self.known or first
        return first

    def agree(self, takes: bool) -> None:
        """Agree on the newest state that survivors hold whole. The ranks that lack it fetch it, or bring themselves to
        it, if `takes`."""
        newest = dict.fromkeys(self._members(), -1)
        for rank in self._survivors:
            part = self._parts.get(rank, 0)
            newest[part] = max(newest[part], self._held.get(rank, -1))
        self.updates = max(newest.values(), default=-1)
        able = {rank for rank in self._ranks if takes and self._kept.get(rank, NOTHING_KEPT).reaches(self.updates)}
        behind = {part: held for part, held in newest.items() if held < self.updates}
        lost = {part: held for part, held in behind.items() if able.isdisjoint(self._members()[part])}
        if lost:
            self._useless = self._apart(lost)
            self.updates = -1
        if self.updates < 0:
            return
        self.complete = {rank for rank in self._survivors if self._held.get(rank, -1) == self.updates}
        self.fetches = tuple(fetch for ranks in self._members().values() for fetch in self._within(ranks, able))
        if takes and self.fetches and (why := self._over.irreplaceable):
            self._useless, self.updates, self.fetches, self.complete = why, -1, (), set()

    @property
    def savers(self) -> tuple[int, ...]:
        """The first rank of each part that holds the agreed state. None: nothing is agreed."""
        if not self.complete:
            return ()
        return tuple(min(self.complete.intersection(ranks)) for ranks in self._members().values())

    def _members(self) -> dict[int, list[int]]:
        """The ranks of each part."""
        found: dict[int, list[int]] = {}
        for rank in self._ranks:
            found.setdefault(self._parts.get(rank, 0), []).append(rank)
        return found

    def _within(self, ranks: list[int], able: set[int]) -> list[Fetch]:
        """A source for each of these ranks that lacks the agreed state: itself, if no rank of its part holds the state
        and it is `able` to bring itself to it. All of them belong to one part."""
        sources = [rank for rank in ranks if rank in self.complete] or [rank for rank in ranks if rank in able]
        lacking = [rank for rank in ranks if rank not in self.complete]
        themselves = able.intersection(sources)
        return [
            Fetch(rank, rank if rank in themselves else sources[at % len(sources)]) for at, rank in enumerate(lacking)
        ]

    def _apart(self, lost: dict[int, int]) -> str:
        """Why the parts of the model cannot continue together. `lost`: the most updates that a rank of each part holds
        that nobody can bring further."""
        part = min(lost, key=lambda one: lost[one])
        ranks, held = self._members()[part], lost[part]
        others = f"of the part of the model that {rank_words(ranks)} {verb(len(ranks), 'has', 'have')}"
        return f"{others}, nobody holds {'anything' if held < 0 else f'more than {held} of {self.updates} updates'}"

    def nobody(self) -> bool:
        """Whether no survivor has reported a whole state."""
        return all(self._held.get(rank, -1) < 0 for rank in self._survivors)

    @property
    def why_useless(self) -> str:
        """Why no survivor holds a whole state, in brackets, if a reason is known."""
        return f" ({self._useless})" if self._useless else ""
