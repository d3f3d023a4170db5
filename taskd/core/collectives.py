"""What ranks tell of their collectives: that one is late, or that one has failed. What the manager does about either.

*Late* (far beyond its rhythm): it says so, once, and does nothing else. A slow rank is not a failed collective. Who
waits tells that it waits; that proves nothing about anybody, so it is no witness for silence, opens no incident and
ends no rank. Every rank of a group may wait for the same operation: the first one's word is the event, the others' add
nothing to it. What the manager knows of the others goes with it: whom the word names, and who is silent. Who is
waited for is found where the whole job stands still (hangs.py).

*Failed*: a rank holds what has failed until a repair comes. None can come once a rank has left the job in good order.
Under another launcher they would have had the error at once. Only the manager knows that there is no repair: the
failure may be told before the rank's end, or after it. So it tells them to let go. A word that is lost is not said
again, since a rank holds nothing for ever.

Not here: what a rank does about it (worker), which repair helps (repair), and what a failure says of silent nodes
(detector).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.messages import Evidence, Unmended
from taskd.core.types import RankState
from taskd.core.words import cut, late_words, rank_words, verb


class LateCollectives:
    """Which late operations have been said."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._said: dict[tuple[int, str], None] = {}  # by epoch, in which operations are numbered anew

    def told(self, evidence: Evidence, seen_by: str, node: str) -> None:
        """A rank on this node waits for an operation."""
        operation = (self._job.epoch, evidence.operation)
        if operation in self._said:
            return
        if len(self._said) >= limits.MAX_KEPT_LATE:
            del self._said[next(iter(self._said))]
        self._said[operation] = None
        text = late_words(seen_by, evidence.operation, evidence.waited_ms, evidence.reason) + self._others(evidence)
        self._job.note("late", text, evidence.witness, node, incident=0)

    def _others(self, evidence: Evidence) -> str:
        """What is known of those that it may wait for."""
        members = self._job.members
        named = f"; it waits for rank {evidence.rank}" if members.find(evidence.rank) is not None else ""
        silent = members.in_state(RankState.SUSPECT)
        return named + (f"; {rank_words(silent)} {verb(len(silent), 'is', 'are')} silent" if silent else "")


class FailedCollectives:
    """Who has told of a failure in the epoch of the day."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._epoch: int | None = None
        self._ranks: set[int] = set()

    def told(self, rank: int) -> None:
        """A collective of this rank has failed."""
        if self._epoch != self._job.epoch:
            self._epoch, self._ranks = self._job.epoch, set()
        self._ranks.add(rank)

    def let_go(self) -> bool:
        """Tell those ranks if somebody has left; whether any was told. To be called while no repair is under way."""
        job, members = self._job, self._job.members
        gone = members.in_state(RankState.LEFT) if self._ranks and members.counts[RankState.LEFT] else []
        if not gone or self._epoch != job.epoch:
            return False
        has = verb(len(gone), "has", "have")
        text = f"{rank_words(gone)} {has} left with exit code 0 before, and can repair nothing"
        waiting, self._ranks = sorted(self._ranks), set()
        for node in sorted({members.ranks[rank].where for rank in waiting}):
            job.tell(node, Unmended(job.term, job.epoch, cut(text)))
        job.note("unmended", f"{rank_words(waiting)} {verb(len(waiting), 'raises', 'raise')} what has failed: {text}")
        return True
