"""Ranks that hold a collective which has failed, where no repair can come: a rank has left the job in good order.

Under another launcher they would have had the error at once. They hold it for a repair, and only the manager knows that
there is none: what failed may be told before the rank's end is, or after it. A word that is lost is not said again,
since a rank holds nothing for ever. Not here: what a rank does about it (worker), and which repair helps (incident).
"""

from __future__ import annotations

from taskd.core.job import Job
from taskd.core.messages import Unmended
from taskd.core.types import RankState
from taskd.core.words import cut, rank_words, verb


class Held:
    """Who has told of a failure in the epoch of the day."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._epoch = -1
        self._ranks: set[int] = set()

    def failed(self, rank: int) -> None:
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
