"""The waiting of an attempt: which ranks a stage waits for, and until when.

A deadline moves while ranks work (patience). Failure modes, and what follows:

- *A rank misses its deadline*: it is late, and may be given up. A rank that may hold the last whole state gets more
  time: the longest that any wait may last.
- *No rank reaches a stage in time*: then no single rank is to blame.
- *The manager restarts*: deadlines start again.

Not here: what ranks report (attempt), and what is done with late ranks (course).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.repair.holdings import Holdings
from taskd.core.repair.patience import Patience
from taskd.core.repair.stages import ALLOWED_NS, AttemptState


class Waiting:
    """The ranks that have not followed yet in the stage under way. `fresh`: every rank starts again; `saves`: ranks
    only write the last checkpoint, so none of them is waited for longer than usual."""

    def __init__(
        self,
        everybody: tuple[int, ...],
        newcomers: frozenset[int],
        fresh: bool,
        saves: bool,
        holdings: Holdings,
        spare_wait_ns: int,
    ) -> None:
        self._everybody = everybody
        self._newcomers = newcomers
        self._fresh, self._saves = fresh, saves
        self._holdings = holdings
        self._spare_wait_ns = spare_wait_ns
        self._state = AttemptState.PLACING
        self.ranks: set[int] = set()
        self.patience = Patience()
        self.deadline = 0

    def begin(self, state: AttemptState, now: int) -> None:
        """A new stage waits for every rank."""
        self._state = state
        self.ranks = set(self._everybody)
        self.restart(now)

    def restart(self, now: int) -> None:
        """The stage's deadline counts from `now`, the manager's waking time. How long ranks still rest is looked up."""
        self.patience.begin(now)
        if self._state is AttemptState.RESTING:
            self.deadline = now
        else:
            self.deadline = now + (self._spare_wait_ns if self._state is AttemptState.PLACING else self._allowed_ns)

    def hurry(self) -> None:
        """A rank holds a whole state, so no rank gets more time for its own any longer."""
        if self._state is AttemptState.QUIESCE:
            self.deadline = min(self.deadline, self._earliest_end())

    def followed(self, rank: int, now: int) -> None:
        """A rank has done what this stage asks."""
        self.ranks.discard(rank)
        if not self._is_set_up(rank):
            self.patience.followed(now)

    def overdue(self, now: int) -> list[int]:
        """The ranks whose time in this stage is over. Empty: the deadline has moved."""
        late = [rank for rank in sorted(self.ranks) if now >= self._ends_at(rank)]
        if not late:
            self.deadline = self._earliest_end()
        return late

    def to_blame(self, late: list[int]) -> list[int]:
        """The late ranks that the repair can do without. Empty: all are late, or only late ranks hold the state."""
        if self._fresh or self._state is AttemptState.QUIESCE:
            return late
        if len(late) == len(self._everybody):
            return []
        spared = self._holdings.complete if self._holdings.complete <= set(late) else frozenset()
        return [rank for rank in late if rank not in spared]

    def patient(self, now: int) -> tuple[list[int], str]:
        """The ranks that have taken longer than usual and are still waited for, and why."""
        waited_ns = self.patience.waited_ns(now)
        long = [rank for rank in sorted(self.ranks) if waited_ns >= self._usual_ns(rank)]
        if any(map(self._may_hold_the_last, long)):
            return long, "nobody else is known to hold a whole state"
        if any(map(self.patience.works, long)):
            return long, "it shows work" if len(long) == 1 else "they show work"
        return long, "this job's steps are long"

    def _earliest_end(self) -> int:
        return min(map(self._ends_at, self.ranks), default=self.deadline)

    def _ends_at(self, rank: int) -> int:
        """Until when to wait for this rank. A survivor that may hold the last whole state gets the longest time."""
        steps = self._state in (AttemptState.QUIESCE, AttemptState.REDO) and not self._is_set_up(rank)
        allowed_ns = limits.LONGEST_STAGE_NS if self._may_hold_the_last(rank) else self._usual_ns(rank)
        return self.patience.until(rank, allowed_ns, steps)

    def _is_set_up(self, rank: int) -> bool:
        """Whether the rank has to run the whole set-up before it parks."""
        return self._state is AttemptState.QUIESCE and rank in self._newcomers

    def _may_hold_the_last(self, rank: int) -> bool:
        """Whether nobody else holds a whole state. A rank that no node speaks of holds none either: a manager that has
        lost its journal does not know that it has died."""
        survives = self._state is AttemptState.QUIESCE and rank not in self._newcomers
        return survives and not self._saves and not self._holdings.known and self.patience.heard(rank)

    def _usual_ns(self, rank: int) -> int:
        return limits.DEADLINE_SETUP_NS if self._is_set_up(rank) else self._allowed_ns

    @property
    def _allowed_ns(self) -> int:
        """How long a rank that shows no work may take for this stage. A start of all ranks counts as a set-up."""
        return (
            limits.DEADLINE_SETUP_NS if self._fresh and self._state is AttemptState.RESUME else ALLOWED_NS[self._state]
        )
