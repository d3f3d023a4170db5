"""Attendance: is everybody there who should be, is anybody left, and has everybody told a manager that is back how
things stand? The questions that no single report answers.

What can go wrong, and what follows:

- *A launcher is here, and ranks that none has started* (theirs died before the manager knew it): launchers meet before
  any of them speaks to the manager, and start their ranks at once, so after a short wait these count as lost.
- *Every rank has gone and somebody else's launcher may bring them back*: a grace, then the job is over.
- *Ranks that never came at all* (a script that does not register everywhere): the job ends when all agents have left.
- *The manager is back, and its journal may have lost its end*: what it remembers may be over. It hears every node out
  before it decides anything, so that nobody is replaced who has been at work again for long.

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
    """Three clocks: since when launchers are here without all ranks, since when nobody is here any more, and how long a
    manager that is back hears the nodes before it decides."""

    def __init__(self, members: Membership) -> None:
        self.members = members
        self.muster_at: int | None = None
        self.gone_at: int | None = None
        self.hears_until: int | None = None
        self._unheard: set[str] = set()

    def deadline(self) -> int | None:
        """When one of the clocks runs out."""
        muster = None if self.muster_at is None else self.muster_at + limits.DEADLINE_MUSTER_NS
        return earliest(muster, None if self.gone_at is None else self.gone_at + limits.DEADLINE_RETURN_NS)

    def restart(self, at: int) -> None:
        """The manager was away: what runs begins anew."""
        self.muster_at = None if self.muster_at is None else at
        self.gone_at = None if self.gone_at is None else at
        here = (NodeState.UP, NodeState.SILENT)
        self._unheard = {node.name for node in self.members.nodes.values() if node.state in here}
        self.hears_until = at + limits.HEAR_NS if self._unheard else None

    def all_run(self, epoch: int) -> bool:
        """Every rank is at work in this epoch, or has ended in good order: there is nothing to repair."""
        for record in self.members.ranks:
            report = record.report
            runs = report is not None and (report.epoch, report.stage) == (epoch, Stage.RUNNING)
            if not (record.state is RankState.LEFT or (runs and record.state is RankState.ALIVE)):
                return False
        return True

    def told_all(self, node: str) -> bool:
        """A node has said how everything stands with it. True: that was news to a manager that is back."""
        if node not in self._unheard:
            return False
        self._unheard.discard(node)
        if not self._unheard:
            self.hears_until = None
        return True

    def node_came(self, at: int) -> None:
        """Are there launchers, and ranks that none of them has started?"""
        if self.muster_at is None and self.members.counts[RankState.ABSENT]:
            self.muster_at = at if any(node.starts for node in self.members.nodes.values()) else None

    def unseen(self, at: int) -> list[RankRecord]:
        """Ranks that nobody ever saw, once the wait for them is over."""
        if self.muster_at is None or at < self.muster_at + limits.DEADLINE_MUSTER_NS:
            return []
        self.muster_at = None
        return [record for record in self.members.ranks if record.state is RankState.ABSENT]

    def gone_for_good(self, at: int) -> bool:
        """Whether the grace for a launcher that is not ours is over."""
        if self.gone_at is None or at < self.gone_at + limits.DEADLINE_RETURN_NS:
            return False
        self.gone_at = None
        return True

    def all_left(self) -> str:
        """Why the job has ended in good order; empty: it has not."""
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
        """Every rank has ended, one way or the other."""
        counts, size = self.members.counts, self.members.world_size
        return size > 0 and counts[RankState.LEFT] + counts[RankState.DEAD] == size
