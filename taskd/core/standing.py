"""Standing: does every rank stand where the order in force wants it? Asked of each report, outside a repair.

What can go wrong, and what follows:

- *A rank missed the end of a repair*: it is behind, and its node is told the order again until it has followed.
- *A rank waits in an epoch that this manager gave no order for*: whoever led that repair has lost its memory, and a
  new one has to begin.

Cost: constant for each report. Not here: how the order is said again (manager), and the new repair (repairs).
"""

from __future__ import annotations

from taskd.core.job import Job
from taskd.core.records import RankRecord
from taskd.core.types import Stage


class Standing:
    """`behind`: the ranks that have yet to follow the order in force."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.behind: set[int] = set()

    def compare(self, record: RankRecord) -> bool:
        """A rank has said how it stands. True: it waits in a repair that nobody leads."""
        report, order = record.report, self.job.order
        assert report is not None
        ahead = order is None or report.epoch > order.epoch
        behind = not ahead and (order is not None and (report.epoch, report.stage) != (order.epoch, order.stage))
        record.watched = behind
        if behind:
            self.behind.add(record.rank)
        else:
            self.behind.discard(record.rank)
        return ahead and report.stage not in (Stage.RUNNING, Stage.SETUP)

    def forget(self) -> None:
        """There is no order any more, or another one is coming."""
        self.behind.clear()
