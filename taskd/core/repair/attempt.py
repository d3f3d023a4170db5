"""One attempt at a repair: quiesce, rebuild, restore, resume, redo, each acknowledged by every rank within a deadline.

One `Attempt` is one epoch. Whatever goes wrong in it ends it, and the manager starts another one with a newer epoch,
so no stage has to undo anything. What can go wrong, and what follows:

- *A rank dies, a newcomer dies in its set-up, a node is lost*: FAULT; the next attempt has other seats.
- *A rank refuses a stage*: the same. *It misses its deadline*, which moves while it works (patience): it is declared
  dead and replaced, unless it may hold the last whole state; that one is waited for as long as any wait may last.
- *Nobody at all reaches a stage in time*: then nobody in particular is to blame, and another epoch begins.
- *A newcomer that is still fine when an attempt ends*: it keeps its seat and goes on with its set-up.
- *No survivor holds a whole state*: the attempt ends, and only a strategy that starts all ranks again is left.
- *The manager restarts*: stages and acknowledgements come back from the journal, deadlines start anew.
- *No spare node*: survivors are parked at once and wait PLACING until there is one, or its deadline has passed.

Invariants: an order of an epoch never names two incarnations of a rank; no stage is ordered before every rank has
followed the one before; the agreed updates are held by every source. Not here: who dies, and which strategy is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from taskd.core import limits
from taskd.core.messages import Fetch, Order, RankReport, Seat
from taskd.core.repair.patience import Patience
from taskd.core.table import Table
from taskd.core.types import PROGRESS, Phase, RankState, Stage, Strategy


class AttemptState(Enum):
    """Where one attempt stands."""

    PLACING = "spare"
    QUIESCE = "quiesce"
    REBUILD = "rebuild"
    RESTORE = "restore"
    RESUME = "resume"
    REDO = "redo"
    ENDED = "ended"


class AttemptCause(Enum):
    """What moves it."""

    PARK = auto()  # every lost rank has a seat
    START = auto()  # every rank starts again: nobody is to be parked
    WAIT = auto()  # no seat for some: a spare node is awaited
    FOLLOWED = auto()  # every rank has followed
    FAULT = auto()  # this epoch cannot be repaired


_P, _PC = AttemptState, AttemptCause
_OPEN = (_P.QUIESCE, _P.REBUILD, _P.RESTORE, _P.RESUME, _P.REDO)
ATTEMPT = Table(
    "attempt",
    "One attempt at a repair, in one epoch.",
    _P.PLACING,
    [
        (_P.PLACING, _PC.WAIT, _P.PLACING),
        (_P.PLACING, _PC.PARK, _P.QUIESCE),
        (_P.PLACING, _PC.START, _P.RESUME),
        (_P.PLACING, _PC.FAULT, _P.ENDED),
        (_P.QUIESCE, _PC.FOLLOWED, _P.REBUILD),
        (_P.REBUILD, _PC.FOLLOWED, _P.RESTORE),
        (_P.RESTORE, _PC.FOLLOWED, _P.RESUME),
        (_P.RESUME, _PC.FOLLOWED, _P.REDO),
        (_P.REDO, _PC.FOLLOWED, _P.ENDED),
        (_OPEN, _PC.FAULT, _P.ENDED),
    ],
)

_STAGE = {
    _P.PLACING: Stage.PARKED,
    _P.QUIESCE: Stage.PARKED,
    _P.REBUILD: Stage.REBUILT,
    _P.RESTORE: Stage.RESTORED,
    _P.RESUME: Stage.RUNNING,
    _P.REDO: Stage.RUNNING,
}
_ASKED = {Stage.PARKED: "park", Stage.REBUILT: "rebuild", Stage.RESTORED: "restore", Stage.RUNNING: "resume"}
_DEADLINE = {
    _P.QUIESCE: limits.DEADLINE_QUIESCE_NS,
    _P.REBUILD: limits.DEADLINE_REBUILD_NS,
    _P.RESTORE: limits.DEADLINE_RESTORE_NS,
    _P.RESUME: limits.DEADLINE_RESUME_NS,
    _P.REDO: limits.DEADLINE_REDO_NS,
}


class Attempt:
    """One attempt. `newcomers`: ranks whose seat is new in this incident and that hold no state yet."""

    def __init__(
        self,
        incident: int,
        strategy: Strategy,
        epoch: int,
        ranks: Iterable[int],
        seats: Iterable[Seat],
        now: int,
        spare_wait_ns: int = limits.DEADLINE_SPARE_NS,
    ) -> None:
        self.incident = incident
        self.strategy = strategy
        self.epoch = epoch
        self.seats = {seat.rank: seat for seat in seats}
        self.ranks = tuple(sorted(ranks))
        self.newcomers = frozenset(self.seats)
        self.state = AttemptState.PLACING
        self.waiting: set[int] = set()
        self.updates = -1
        self.fetches: tuple[Fetch, ...] = ()
        self.complete: set[int] = set()  # ranks that hold a whole state in this epoch
        self.useless = ""  # why a survivor holds nothing of use, in its own words
        self._held: dict[int, int] = {}  # updates held, by rank, as said when it parked
        self._step_at_resume: dict[int, int] = {}
        self._state_known = False  # one that has parked holds a whole state
        self.patience = Patience()
        self.deadline = now
        self.spare_wait_ns = spare_wait_ns

    @property
    def fresh(self) -> bool:
        """Every rank starts again; nothing is parked, rebuilt or restored."""
        return self.strategy is Strategy.RESPAWN

    @property
    def stage(self) -> Stage:
        """What the ranks are told to reach."""
        return _STAGE[self.state]

    @property
    def asked(self) -> str:
        """The same as a verb."""
        return _ASKED[self.stage]

    def move(self, cause: AttemptCause, now: int) -> None:
        """Apply one row of the table; a new stage waits for every rank."""
        self.state = ATTEMPT.after(self.state, cause)
        if self.state is AttemptState.ENDED:
            self.waiting.clear()
            return
        self.waiting = set(self.ranks)
        self.restart_clock(now)
        if self.state is AttemptState.REBUILD:
            self._agree()

    @property
    def _allowed_ns(self) -> int:
        """How long a rank that shows nothing may take for this stage; a common start is a set-up."""
        return limits.DEADLINE_SETUP_NS if self.fresh and self.state is AttemptState.RESUME else _DEADLINE[self.state]

    def restart_clock(self, now: int) -> None:
        """The stage's deadline counts from `now`, the manager's waking time."""
        self.patience.begin(now)
        self.deadline = now + (self.spare_wait_ns if self.state is AttemptState.PLACING else self._allowed_ns)

    # ---- what ranks say ---------------------------------------------------------------------------------------

    def follow(self, report: RankReport, now: int) -> str:
        """One rank's report. Gives the words of a refusal; empty: it has followed, or has yet to."""
        rank = report.rank
        self.patience.saw(report, now)
        if report.epoch != self.epoch or report.state is not RankState.ALIVE or rank not in self.waiting:
            return ""
        if self.state is AttemptState.REDO:
            self._redone(report)
            return ""
        if self.outrun(report) or PROGRESS[report.stage] < PROGRESS[self.stage]:
            return ""
        if not report.ok and not self._may_be_useless(report):
            return report.reason or "it gave no reason"
        if self.stage is Stage.PARKED:
            self._held[rank] = report.updates if report.ok else -1
            self.useless = self.useless or report.reason
            if report.ok and report.updates >= 0 and not self._state_known:
                self._state_known = True
                if self.state is AttemptState.QUIESCE:
                    self.deadline = min(self.deadline, self._earliest_end())  # nobody is spared for its state any more
        elif self.stage is not Stage.REBUILT:
            self.complete.add(rank)
            self._step_at_resume[rank] = max(report.step, 0)  # -1 is no step, 0 the first one under way
        self.waiting.discard(rank)
        if self.state is not AttemptState.QUIESCE or rank not in self.newcomers:
            self.patience.followed(now)
        return ""

    def outrun(self, report: RankReport) -> bool:
        """A rank runs in this epoch before anybody was told to: only a manager that has lost the end of its journal can
        see this."""
        if self.state is AttemptState.ENDED or report.epoch != self.epoch or report.state is not RankState.ALIVE:
            return False
        return report.stage is Stage.RUNNING and self.stage is not Stage.RUNNING

    def _may_be_useless(self, report: RankReport) -> bool:
        """A survivor that stopped inside its update has parked all right; it only has to fetch what others hold."""
        return report.stage is Stage.PARKED and self.stage is Stage.PARKED and report.rank not in self.newcomers

    def _redone(self, report: RankReport) -> None:
        """The first step after the repair is made when it has brought an update. Only where nobody counts updates, the
        next step's begin must do: a survivor that had its update before the fault begins one with nothing made yet."""
        if self.updates >= 0:
            went_on = report.updates > self.updates
        else:
            went_on = report.step > self._step_at_resume.get(report.rank, report.step)
        if went_on or report.phase is Phase.DONE:
            self.waiting.discard(report.rank)

    def leave(self, report: RankReport) -> bool:
        """A rank has ended in good order. False: too early, the repair cannot do without it."""
        resumed = report.epoch == self.epoch and report.stage is Stage.RUNNING
        if not resumed or self.state not in (AttemptState.RESUME, AttemptState.REDO):
            return False
        self.waiting.discard(report.rank)
        return True

    def _agree(self) -> None:
        """The newest state that a survivor holds whole is the one to go on from; whoever lacks it fetches it."""
        assert not self.fresh
        survivors = [rank for rank in self.ranks if rank not in self.newcomers]
        self.updates = max((self._held.get(rank, -1) for rank in survivors), default=-1)
        if self.updates < 0:
            return
        sources = [rank for rank in survivors if self._held.get(rank, -1) == self.updates]
        self.complete = set(sources)
        lacking = [rank for rank in self.ranks if rank not in self.complete]
        self.fetches = tuple(Fetch(rank, sources[at % len(sources)]) for at, rank in enumerate(lacking))

    @property
    def state_lost(self) -> bool:
        """All survivors have parked, and none of them holds a whole state: no newcomer is worth waiting for."""
        if self.state is AttemptState.QUIESCE and self.waiting <= self.newcomers:
            return all(self._held.get(rank, -1) < 0 for rank in self.ranks if rank not in self.newcomers)
        return self.state is AttemptState.REBUILD and self.updates < 0

    @property
    def why_useless(self) -> str:
        """Why no survivor holds one, in brackets, if somebody has said so."""
        return f" ({self.useless})" if self.useless else ""

    # ---- deadlines --------------------------------------------------------------------------------------------

    def overdue(self, now: int) -> list[int]:
        """Who has been waited for long enough in this stage. Nobody: the deadline has moved."""
        late = [rank for rank in sorted(self.waiting) if now >= self._ends_at(rank)]
        if not late:
            self.deadline = self._earliest_end()
        return late

    def to_blame(self, late: list[int]) -> list[int]:
        """Of those who are late, whom the repair can do without. Nobody: all are late, or they alone hold the state."""
        if self.fresh or self.state is AttemptState.QUIESCE:
            return late
        if len(late) == len(self.ranks):
            return []
        spared = self.complete if self.complete <= set(late) else frozenset()
        return [rank for rank in late if rank not in spared]

    def _earliest_end(self) -> int:
        return min(map(self._ends_at, self.waiting), default=self.deadline)

    def _ends_at(self, rank: int) -> int:
        """Until when this rank is waited for; a survivor that may hold the last whole state: as long as any."""
        steps = self.state in (AttemptState.QUIESCE, AttemptState.REDO) and not self._is_set_up(rank)
        allowed_ns = limits.LONGEST_STAGE_NS if self._may_hold_the_last(rank) else self._usual_ns(rank)
        return self.patience.until(rank, allowed_ns, steps)

    def _is_set_up(self, rank: int) -> bool:
        """It runs the whole set-up before it parks."""
        return self.state is AttemptState.QUIESCE and rank in self.newcomers

    def _may_hold_the_last(self, rank: int) -> bool:
        return self.state is AttemptState.QUIESCE and rank not in self.newcomers and not self._state_known

    def _usual_ns(self, rank: int) -> int:
        return limits.DEADLINE_SETUP_NS if self._is_set_up(rank) else self._allowed_ns

    def patient(self, now: int) -> tuple[list[int], str]:
        """Who has taken longer than is usual and is waited for all the same, and why."""
        waited_ns = self.patience.waited_ns(now)
        long = [rank for rank in sorted(self.waiting) if waited_ns >= self._usual_ns(rank)]
        if any(map(self._may_hold_the_last, long)):
            return long, "nobody else is known to hold a whole state"
        if any(map(self.patience.works, long)):
            return long, "it shows work" if len(long) == 1 else "they show work"
        return long, "this job's steps are long"

    # ---- orders -----------------------------------------------------------------------------------------------

    def order(self, term: int, reason: str) -> Order:
        """How the job shall stand, at this point of the repair."""
        return Order(
            term=term,
            epoch=self.epoch,
            stage=self.stage,
            incident=self.incident,
            updates=self.updates,
            seats=tuple(self.seats[rank] for rank in sorted(self.seats)),
            fetches=self.fetches,
            reason=reason,
        )
