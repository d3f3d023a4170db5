"""Late and failed collectives: what the manager does when ranks report one.

*Late* (far beyond its rhythm): the manager reports it once and does nothing else. A slow rank is not a failed
collective. The rank that waits reports that it waits. This proves nothing about any other rank, so it is no witness for
silence, opens no incident and ends no rank. Every rank of a group may wait for the same operation: the first report is
the event, the others add nothing. The manager adds what it knows: the rank that the report names, and the silent ranks.
Which rank the others wait for is found only when the whole job stands still (hangs.py).

*Failed*: a rank holds the error of a failed collective until a repair comes. No repair can come once a rank has left
the job in good order. Under another launcher the ranks would have raised the error at once. Only the manager knows that
there is no repair: the failure may be reported before the rank's end, or after it. So the manager tells the ranks to
let go. A message that is lost is not sent again, since a rank holds nothing for ever.

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
    """The late operations that were reported."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._said: dict[tuple[int, str], None] = {}  # with the epoch: each epoch numbers its operations anew

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
        """Say what is known of the ranks that it may wait for."""
        members = self._job.members
        named = f"; it waits for rank {evidence.rank}" if members.find(evidence.rank) is not None else ""
        silent = members.in_state(RankState.SUSPECT)
        return named + (f"; {rank_words(silent)} {verb(len(silent), 'is', 'are')} silent" if silent else "")


class FailedCollectives:
    """The ranks that have reported a failure in the current epoch."""

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
        """If a rank has left, tell these ranks to let go. Return whether any was told. To be called outside repairs."""
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
