"""How long a rank is waited for in a stage of a repair: by what it shows, and not by the clock alone.

A fixed deadline cannot tell a rank that hangs from one in the middle of a long step, of a slow import, of a large
fetch. What can go wrong, and what follows:

- *It hangs*: it shows nothing new, and the stage's allowance runs out.
- *Its step is long*: the job has told how long its steps take; three of them are allowed, whatever that is.
- *The first step is long*, so nobody has told: the others may take twice what the quickest took.
- *It works* (its step or phase changes, its process uses the processor or moves bytes): the allowance begins anew.
- *It spins without end*, which looks like work: LONGEST_STAGE_NS ends that, too.
- *Its node is silent*: then nothing is shown, and the detector judges it besides.

Only what is journaled is looked at, so a replay finds the same deadlines. Not here: who is given up (waiting).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.messages import RankReport

STEPS_ALLOWED = 3
"""A step may take so many times what the longest known one took: some are longer than others, and machines get busy."""
QUICKEST_TIMES = 2
"""Who follows may take so many times what the first one took: all of them are in steps of the same length."""


class Patience:
    """What the ranks of one attempt have shown, and when; times are the manager's waking time."""

    def __init__(self) -> None:
        self.step_ns = 0  # the longest step that any rank has told
        self._began_at = 0
        self._quickest_ns: int | None = None  # what the first rank that followed took in this stage
        self._shown: dict[int, tuple[int, ...]] = {}
        self._moved_at: dict[int, int] = {}

    def begin(self, now: int) -> None:
        """Another stage begins, or a manager that was away is back."""
        self._began_at, self._quickest_ns = now, None
        self._shown.clear()
        self._moved_at.clear()

    def saw(self, report: RankReport, now: int) -> None:
        """One rank's report. Its first one in a stage only says where it stands."""
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
        """When this rank has been waited for long enough. `steps`: what is awaited may lie behind a step's end."""
        learned_ns = STEPS_ALLOWED * self.step_ns if steps else 0
        least = max(allowed_ns, learned_ns, QUICKEST_TIMES * (self._quickest_ns or 0))
        moved_at = self._moved_at.get(rank, self._began_at)
        most_ns = max(limits.LONGEST_STAGE_NS, least)
        return min(max(self._began_at + least, moved_at + allowed_ns), self._began_at + most_ns)

    def works(self, rank: int) -> bool:
        """Whether it has shown any work in this stage."""
        return rank in self._moved_at

    def waited_ns(self, now: int) -> int:
        """How long this stage has been waited for."""
        return now - self._began_at
