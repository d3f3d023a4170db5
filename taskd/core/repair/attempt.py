"""One attempt at a repair: quiesce, rebuild, restore, resume, redo, each acknowledged by every rank within a deadline.

One `Attempt` is one epoch. Any fault in it ends the attempt. The manager then starts another one with a newer epoch, so
no stage has to undo anything. Failure modes, and what follows:

- *A rank dies, a newcomer dies in its set-up, a node is lost*: FAULT; the next attempt has other seats.
- *A rank refuses a stage, or misses its deadline* (waiting): the same.
- *An attempt ends while a newcomer is still fine*: the newcomer keeps its seat and continues its set-up.
- *No survivor holds a whole state*: the attempt ends. Only a strategy that starts all ranks again is left.
- *The job cannot go on* (strategy DUMP): the ranks that can save their state park, and one of each part does so.
- *The manager restarts*: stages and acknowledgements come back from the journal. Deadlines start again.
- *No spare node*: survivors park at once. The attempt stays in PLACING until a node comes or the deadline passes.

Invariants: an order of an epoch never names two incarnations of a rank. A stage is ordered only after every rank has
followed the previous one. Not here: what ranks hold (holdings), which ranks die, and which strategy is used.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core import limits
from taskd.core.messages import Order, RankReport, Seat
from taskd.core.repair.holdings import Holdings
from taskd.core.repair.stages import ASKED, ATTEMPT, STAGE, AttemptCause, AttemptState
from taskd.core.repair.waiting import Waiting
from taskd.core.starts_over import StartsOver
from taskd.core.types import PROGRESS, Phase, RankState, Stage, Strategy


class Attempt:
    """One attempt. `newcomers`: ranks that got a new seat in this incident and hold no state yet."""

    def __init__(
        self,
        incident: int,
        strategy: Strategy,
        epoch: int,
        ranks: Iterable[int],
        seats: Iterable[Seat],
        over: StartsOver,
        spare_wait_ns: int = limits.DEADLINE_SPARE_NS,
    ) -> None:
        self.incident = incident
        self.strategy = strategy
        self.epoch = epoch
        self.seats = {seat.rank: seat for seat in seats}
        self.ranks = tuple(sorted(ranks))
        self.newcomers = frozenset(self.seats)
        self.state = AttemptState.PLACING
        self.holdings = Holdings(self.ranks, self.newcomers, over)
        self.waiting = Waiting(self.ranks, self.newcomers, self.fresh, self.saves, self.holdings, spare_wait_ns)
        self._step_at_resume: dict[int, int] = {}

    @property
    def fresh(self) -> bool:
        """Whether every rank starts again, so that no rank is parked, rebuilt or restored."""
        return self.strategy is Strategy.RESPAWN

    @property
    def saves(self) -> bool:
        """Whether its ranks only save their state. What follows is another attempt, or the end."""
        return self.strategy is Strategy.DUMP

    @property
    def stage(self) -> Stage:
        """The stage that the ranks are told to reach."""
        return STAGE[self.state]

    @property
    def asked(self) -> str:
        """The current stage as a verb."""
        return ASKED[self.stage]

    def move(self, cause: AttemptCause, now: int) -> None:
        """Apply one row of the table. A new stage waits for every rank."""
        self.state = ATTEMPT.after(self.state, cause)
        if self.state is AttemptState.ENDED:
            self.waiting.ranks.clear()
            return
        self.waiting.begin(self.state, now)
        if self.state in (AttemptState.REBUILD, AttemptState.SAVE):
            assert not self.fresh
            self.holdings.agree(takes=not self.saves)
        if self.state is AttemptState.SAVE and self.holdings.updates >= 0:
            self.waiting.ranks.intersection_update(self.holdings.savers)

    def followed(self, now: int) -> None:
        """Every rank has followed: go to the next stage, or to the end."""
        parked_to_save = self.saves and self.state is AttemptState.QUIESCE
        self.move(AttemptCause.SAVE if parked_to_save else AttemptCause.FOLLOWED, now)

    # ---- what ranks say ---------------------------------------------------------------------------------------

    def follow(self, report: RankReport, now: int) -> str:
        """Take one rank's report. Return the words of a refusal; empty: it has followed, or has not followed yet."""
        rank = report.rank
        self.waiting.patience.saw(report, now)
        if report.epoch != self.epoch or report.state is not RankState.ALIVE or rank not in self.waiting.ranks:
            return ""
        if self.state is AttemptState.REDO:
            self._redone(report)
            return ""
        if self.outrun(report) or PROGRESS[report.stage] < PROGRESS[self.stage]:
            return ""
        if not report.ok and not self._may_be_useless(report):
            return report.reason or "it gave no reason"
        if self.stage is Stage.PARKED:
            if self.holdings.parked(report):
                self.waiting.hurry()
        elif self.stage in (Stage.RESTORED, Stage.RUNNING):
            self.holdings.complete.add(rank)
            self._step_at_resume[rank] = max(report.step, 0)  # -1: no step; 0: the first step is under way
        self.waiting.followed(rank, now)
        return ""

    def outrun(self, report: RankReport) -> bool:
        """Whether a rank runs in this epoch before it was told to. This happens only if the manager has lost the end of
        its journal."""
        if self.state is AttemptState.ENDED or report.epoch != self.epoch or report.state is not RankState.ALIVE:
            return False
        return report.stage is Stage.RUNNING and self.stage is not Stage.RUNNING

    def _may_be_useless(self, report: RankReport) -> bool:
        """Whether a refusal is acceptable. A survivor that stopped inside its update parks correctly, without a state.
        It only has to fetch the state from another rank."""
        return report.stage is Stage.PARKED and self.stage is Stage.PARKED and report.rank not in self.newcomers

    def _redone(self, report: RankReport) -> None:
        """Stop waiting for a rank that has finished its first step after the repair: it has made a new update. If
        updates are not counted, the begin of the next step has to do. It proves less: a survivor that made its update
        before the fault begins a next step without a new one."""
        if self.holdings.updates >= 0:
            went_on = report.updates > self.holdings.updates
        else:
            went_on = report.step > self._step_at_resume.get(report.rank, report.step)
        if went_on or report.phase is Phase.DONE:
            self.waiting.ranks.discard(report.rank)

    def leave(self, report: RankReport) -> bool:
        """A rank has ended in good order. Return False if that is too early: the repair still needs the rank."""
        if self.saves and report.rank not in self.holdings.savers:
            self.waiting.ranks.discard(report.rank)
            return True
        resumed = report.epoch == self.epoch and report.stage is Stage.RUNNING
        if not resumed or self.state not in (AttemptState.RESUME, AttemptState.REDO):
            return False
        self.waiting.ranks.discard(report.rank)
        return True

    @property
    def state_lost(self) -> bool:
        """Whether all survivors have parked and none holds a whole state. Waiting for newcomers is then useless."""
        if self.state is AttemptState.QUIESCE and self.waiting.ranks <= self.newcomers:
            return self.holdings.nobody()
        return self.state in (AttemptState.REBUILD, AttemptState.SAVE) and self.holdings.updates < 0

    # ---- orders -----------------------------------------------------------------------------------------------

    def order(self, term: int, reason: str) -> Order:
        """Return the order for the current stage of the repair."""
        return Order(
            term=term,
            epoch=self.epoch,
            stage=self.stage,
            incident=self.incident,
            updates=self.holdings.updates,
            seats=tuple(self.seats[rank] for rank in sorted(self.seats)),
            fetches=() if self.saves else self.holdings.fetches,
            reason=reason,
            savers=self.holdings.savers if self.state is AttemptState.SAVE else (),
        )
