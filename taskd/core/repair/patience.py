"""How long a stage of a repair waits for a rank: it depends on the work that the rank shows, not on the clock alone.

A fixed deadline cannot tell a hanging rank from a rank in a long step, a slow import or a large fetch. Failure modes,
and what follows:

- *The rank hangs*: it shows nothing new, and the stage's allowance runs out.
- *Its step is long*: the ranks have reported how long their steps take. Three such steps are allowed, however long.
- *The first step is long*, so no rank has reported a duration: the others may take twice what the quickest rank took.
- *It works* (its step or phase changes, its process uses the processor or moves bytes): the allowance starts again.
- *It spins without end*, which looks like work: LONGEST_STAGE_NS ends that, too.
- *Its node is silent*: then the rank shows nothing, and the detector also judges the node.

Only journaled reports are used, so a replay finds the same deadlines. Not here: which rank is given up (waiting).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.messages import RankReport

STEPS_ALLOWED = 3
"""A step may take this many times the longest known step: some steps are longer, and machines get busy."""
QUICKEST_TIMES = 2
"""A rank may take this many times what the first rank took: all ranks are in steps of the same length."""


class Patience:
    """What the ranks of one attempt have shown, and when. Times are the manager's waking time."""

    def __init__(self) -> None:
        self.step_ns = 0  # the longest step that any rank has reported
        self._began_at = 0
        self._quickest_ns: int | None = None  # what the first rank that followed took in this stage
        self._shown: dict[int, tuple[int, ...]] = {}
        self._moved_at: dict[int, int] = {}

    def begin(self, now: int) -> None:
        """Another stage begins, or the manager was restarted."""
        self._began_at, self._quickest_ns = now, None
        self._shown.clear()
        self._moved_at.clear()

    def saw(self, report: RankReport, now: int) -> None:
        """Take one rank's report. Its first report in a stage is only the base for comparison."""
        self.step_ns = max(self.step_ns, report.step_ms * limits.MS)
        shown = (report.step, report.phase, report.work)
        if self._shown.get(report.rank, shown) != shown:
            self._moved_at[report.rank] = now
        self._shown[report.rank] = shown

    def followed(self, now: int) -> None:
        """A rank has done what this stage asks."""
        if self._quickest_ns is None:
            self._quickest_ns = now - self._began_at

    def until(self, rank: int, allowed_ns: int, steps: bool) -> int:
        """Until when to wait for this rank. `steps`: the rank may have to finish a step before it can follow."""
        learned_ns = STEPS_ALLOWED * self.step_ns if steps else 0
        least = max(allowed_ns, learned_ns, QUICKEST_TIMES * (self._quickest_ns or 0))
        moved_at = self._moved_at.get(rank, self._began_at)
        most_ns = max(limits.LONGEST_STAGE_NS, least)
        return min(max(self._began_at + least, moved_at + allowed_ns), self._began_at + most_ns)

    def heard(self, rank: int) -> bool:
        """Whether anybody has reported it in this stage."""
        return rank in self._shown

    def works(self, rank: int) -> bool:
        """Whether it has shown any work in this stage."""
        return rank in self._moved_at

    def waited_ns(self, now: int) -> int:
        """How long this stage has been waited for."""
        return now - self._began_at
