"""Attendance: whether all expected ranks are there, whether any rank is left, and whether all nodes have reported to a
restarted manager. No single report answers these questions.

Failure modes, and what follows:

- *A launcher is here, but no launcher has started some ranks* (their launcher died before the manager knew it):
  launchers meet before any of them speaks to the manager, and start their ranks at once. So after a short wait these
  ranks count as lost.
- *Every rank has gone, and an external launcher may bring them back*: a grace period, then the job is over.
- *Some ranks never came* (a script that does not register on every rank): the job ends when all agents have left.
- *The manager restarts, and its journal may have lost its end*: what it remembers may be outdated. It waits for the
  report of every node before it decides, so that it replaces no rank that has long been at work again.

Cost: constant for every rank that ends. Not here: what is done about it (repairs, ending). All `at` are waking time.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.membership import Membership
from taskd.core.records import NodeState, RankRecord
from taskd.core.times import earliest
from taskd.core.types import RankState, Stage

NOBODY_BACK = f"no rank came back within {limits.DEADLINE_RETURN_NS // limits.SECOND} s"

ALL_DONE = "all ranks had done their work"


class Attendance:
    """Three clocks: since when launchers are here but some ranks are missing, since when no rank is left, and until
    when a restarted manager waits for the nodes before it decides."""

    def __init__(self, members: Membership) -> None:
        self.members = members
        self.muster_at: int | None = None
        self.gone_at: int | None = None
        self.hears_until: int | None = None
        self._unheard: set[str] = set()

    def deadline(self) -> int | None:
        """When the next of the first two clocks runs out."""
        muster = None if self.muster_at is None else self.muster_at + limits.DEADLINE_MUSTER_NS
        return earliest(muster, None if self.gone_at is None else self.gone_at + limits.DEADLINE_RETURN_NS)

    def restart(self, at: int) -> None:
        """The manager was away: running clocks start again."""
        self.muster_at = None if self.muster_at is None else at
        self.gone_at = None if self.gone_at is None else at
        here = (NodeState.UP, NodeState.SILENT)
        self._unheard = {node.name for node in self.members.nodes.values() if node.state in here}
        self.hears_until = at + limits.HEAR_NS if self._unheard else None

    def all_run(self, epoch: int) -> bool:
        """Whether every rank runs in this epoch or has ended in good order, so that nothing needs repair."""
        for record in self.members.ranks:
            report = record.report
            runs = report is not None and report.ok and (report.epoch, report.stage) == (epoch, Stage.RUNNING)
            if not (record.state is RankState.LEFT or (runs and record.state is RankState.ALIVE)):
                return False
        return True

    def told_all(self, node: str) -> bool:
        """A node has reported everything. Return True if a restarted manager was waiting for that."""
        if node not in self._unheard:
            return False
        self._unheard.discard(node)
        if not self._unheard:
            self.hears_until = None
        return True

    def told_nothing(self, node: str) -> bool:
        """Whether a restarted manager has not heard yet what this node knows."""
        return node in self._unheard

    def node_came(self, at: int) -> None:
        """A node came up. Start the muster clock if there are launchers and ranks that none of them has started."""
        if self.muster_at is None and self.members.counts[RankState.ABSENT]:
            self.muster_at = at if any(node.starts for node in self.members.nodes.values()) else None

    def unseen(self, at: int) -> list[RankRecord]:
        """Ranks that were never seen, once the wait for them is over."""
        if self.muster_at is None or at < self.muster_at + limits.DEADLINE_MUSTER_NS:
            return []
        self.muster_at = None
        return [record for record in self.members.ranks if record.state is RankState.ABSENT]

    def gone_for_good(self, at: int) -> bool:
        """Whether the grace period for an external launcher is over."""
        if self.gone_at is None or at < self.gone_at + limits.DEADLINE_RETURN_NS:
            return False
        self.gone_at = None
        return True

    def all_left(self) -> str:
        """Why the job has ended in good order. Empty: it has not."""
        counts = self.members.counts
        left, size = counts[RankState.LEFT], self.members.world_size
        if size and left == size:
            return "all ranks have ended in good order"
        gone = left + counts[RankState.DEAD] == size
        if (
            size
            and left
            and gone
            and all(record.done or record.state is RankState.LEFT for record in self.members.ranks)
        ):
            return ALL_DONE
        if size and gone and all(record.left or record.state is RankState.LEFT for record in self.members.ranks):
            return "all ranks have ended with exit code 0, not all of them between two steps"
        if left and left + counts[RankState.ABSENT] == size and self.members.all_agents_left:
            return "all ranks that ever came have ended in good order"
        return ""

    def nobody(self) -> bool:
        """Whether every rank has ended, in good order or not."""
        counts, size = self.members.counts, self.members.world_size
        return size > 0 and counts[RankState.LEFT] + counts[RankState.DEAD] == size
