"""Late and failed collectives, and those that wait for a rank that has ended: what the manager does about them.

*Late* (far beyond its rhythm): the manager reports it once and does nothing else. A slow rank is not a failed
collective. The rank that waits reports that it waits. This proves nothing about any other rank, so it is no witness for
silence, opens no incident and ends no rank. Every rank of a group may wait for the same operation: the first report is
the event, the others add nothing. The manager adds what it knows: the rank that the report names, and the silent ranks.
Which rank the others wait for is found only when the whole job stands still (hangs.py).

*Failed*: a rank holds the error of a failed collective until a repair comes. No repair can come once a rank has left
the job in good order. Under another launcher the ranks would have raised the error at once. Only the manager knows that
there is no repair: the failure may be reported before the rank's end, or after it. So the manager tells the ranks to
let go. A message that is lost is not sent again, since a rank holds nothing for ever.

*Waiting for a rank that has ended* with exit code 0 and without a word, as by os._exit. A rank that ends otherwise says
farewell, or is replaced. This one just disappears, as if a network had failed, and ranks wait for a network. So the
manager tells them what has happened, and their transports wait no longer. What can go wrong, and what follows:

- *Many ranks end so at once*: there is one message for all that end within a tick, to the nodes of living ranks.
- *The message is lost*: the ranks wait as for a network, which is bounded.
- *The rank is replaced, or all start over*: the message names its epoch, and newer connections are left alone.
- *What it has sent is still on its way*: its bytes arrive first (csrc/rail/session/session.cpp).

Not here: what a rank does about it (worker), which repair helps (repair), and what a failure says of silent nodes
(detector).
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.messages import Evidence, RanksEnded, Unmended
from taskd.core.times import long_ago
from taskd.core.types import RankState
from taskd.core.words import cut, late_words, rank_words, verb


class Collectives:
    """All that the manager knows about collectives, and about the ranks that they wait for."""

    def __init__(self, job: Job) -> None:
        self.late = LateCollectives(job)
        self.failed = FailedCollectives(job)
        self.ended = EndedRanks(job)


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


class EndedRanks:
    """The ranks that have ended without a word, and that the others have yet to be told of."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._untold: set[int] = set()
        self._told_at: int | None = None

    def left(self, ranks: Iterable[int]) -> None:
        """These ranks have ended with exit code 0."""
        self._untold.update(rank for rank in ranks if self._job.members.ranks[rank].left_unsaid)

    def restarted(self) -> None:
        """The manager was away, and perhaps its last message has not been sent."""
        self._told_at = None
        self._untold.update(record.rank for record in self._job.members.ranks if record.left_unsaid)

    def tell(self, at: int) -> bool:
        """Tell the nodes of living ranks, at most once per tick. Return whether any was told. To be called outside
        repairs: a repair makes all connections anew."""
        if not self._untold or not long_ago(self._told_at, at, limits.TICK_NS):
            return False
        job, ranks = self._job, self._job.members.ranks
        ended = tuple(rank for rank in sorted(self._untold) if ranks[rank].left_unsaid)
        nodes = sorted({record.where for record in ranks if record.live})
        if ended and not nodes:
            return False  # nobody is there to be told now, and nothing has changed
        self._untold = set()
        if not ended:
            return False
        self._told_at = at
        for node in nodes:
            job.tell(node, RanksEnded(job.term, job.epoch, ended))
        if nodes:
            job.note("ended", f"no rank waits any longer for {rank_words(ended)}, which left without a word")
        return bool(nodes)
