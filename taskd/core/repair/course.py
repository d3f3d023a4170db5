"""The course of the attempt under way: its next stage, its end, and what happens to ranks that do not follow.

Failure modes, and what follows:

- *A rank says that it cannot follow*: a newcomer in its set-up is given up. Any other refusal counts as trouble.
- *A rank says that going on would be wrong*, whichever rank is replaced: training does not continue from this state.
- *A stage's deadline passes*: the ranks to blame are given up. If no rank is to blame, another epoch begins.
- *The rest of ranks that died again and again is over*: they are started once more.
- *All nodes are silent*: no other node could take over, so the stage gets its full time again.
- *All survivors have parked and none holds a whole state*: the ladder is told so.
- *The last checkpoint is written, or cannot be*: the ladder is asked once more, and not for another one.

Not here: which ranks are waited for, and for how long (waiting, patience); what is done about trouble (faults,
decider).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.records import RankRecord
from taskd.core.repair import notices
from taskd.core.repair.attempt import Attempt
from taskd.core.repair.attempts import Progress
from taskd.core.repair.case import Case
from taskd.core.repair.decider import Decider
from taskd.core.repair.decision import DecisionCause
from taskd.core.repair.faults import Faults
from taskd.core.repair.incident import IncidentCause
from taskd.core.repair.stages import AttemptState
from taskd.core.times import Moment
from taskd.core.types import GivenUp, Strategy
from taskd.core.words import WOULD_BE_WRONG, rank_words


class Course:
    """Moves the attempt on when ranks have followed, and acts when they have not."""

    def __init__(self, job: Job, case: Case, decider: Decider, faults: Faults) -> None:
        self._job = job
        self._members = job.members
        self._case = case
        self._decider = decider
        self._faults = faults

    def go_on(self, when: Moment) -> None:
        """Begin the attempt's next stage, or end it. A pending decision about a fault keeps it in its stage."""
        incident, attempt = self._case.incident, self._case.attempts.attempt
        if attempt is None or self._case.decision.pending:
            return
        assert incident is not None
        progress = self._case.attempts.advance(incident, when)
        if progress is Progress.HEALED:
            self._mended("every rank has done its first step", when.now)
        elif progress is Progress.SAVED:
            updates, who = attempt.holdings.updates, rank_words(attempt.holdings.savers)
            incident.checkpoint.updates = updates
            self._saved("saved", f"{who} wrote the last checkpoint, after {updates} updates", when)
        elif progress is Progress.STATE_LOST and attempt.saves:
            self._not_saved(f"no survivor holds a whole state{attempt.holdings.why_useless}", when)
        elif progress is Progress.STATE_LOST:
            incident.state_lost = True
            self._faults.troubled("state", f"no survivor holds a whole state{attempt.holdings.why_useless}", [], when)

    def _mended(self, proof: str, now: int) -> None:
        """The repair has succeeded. Training continues without loss, or from the beginning."""
        incident = self._case.incident
        assert incident is not None
        kind = "over" if incident.over.times else "healed"
        self._job.note(kind, notices.mended(incident, proof, now))
        self._case.close(IncidentCause.HEALED, incident.good_end, proof, now)

    def _not_saved(self, why: str, when: Moment) -> None:
        self._saved("unsaved", f"no last checkpoint: {why}", when)

    def _saved(self, kind: str, text: str, when: Moment) -> None:
        """The survivors have done what they could. Nothing that has led to this is better now."""
        incident = self._case.incident
        assert incident is not None
        incident.exhausted.add(Strategy.DUMP)
        incident.checkpoint.text = text
        incident.checkpoint.ends(when.now)
        incident.note(text)
        self._job.note(kind, text)
        self._case.decision.want(DecisionCause.TROUBLE, when.at)  # even if the decision has to wait for nodes
        self._decider.decide(when)

    def overdue(self, attempt: Attempt, when: Moment) -> None:
        """A stage's deadline has passed."""
        incident, attempts = self._case.incident, self._case.attempts
        assert incident is not None
        if attempts.placing and attempts.held:
            self._decider.decide_soon(DecisionCause.WANTED, when)
        elif attempts.placing:
            incident.exhausted.add(attempt.strategy)
            attempts.drop(incident, when)
            text = f"no node with room came within {-(-attempts.spare_wait_ns // limits.SECOND)} s"
            self._faults.troubled("spare", text, [], when)
        elif attempts.resting:
            self._decider.decide_soon(DecisionCause.WANTED, when)
        elif self._members.all_silent:
            attempt.waiting.restart(when.at)  # late ranks may have followed long ago, and no node could take over
        elif not (late := attempt.waiting.overdue(when.at)):
            if text := notices.waits(attempt, when.at):
                self._job.note("waits", text)
        elif attempt.state is AttemptState.REDO and self._members.paused:
            attempt.waiting.restart(when.at)  # ranks that stand for an operator do no step
        elif attempt.state is AttemptState.REDO:
            self._mended(f"{rank_words(late)} showed no finished step in time", when.now)
        elif attempt.state is AttemptState.SAVE:
            self._not_saved(f"{rank_words(late)} did not write it in time", when)
        elif attempt.saves:
            attempt.waiting.ranks.difference_update(late)  # it is no fault of theirs: without them, if others can write
            self.go_on(when)
        elif blamed := attempt.waiting.to_blame(late):
            reason = f"did not {attempt.asked} in time"
            ranks, why = self._members.ranks, GivenUp.NOT_FOLLOWED
            dead = [rank for rank in blamed if self._members.give_up(ranks[rank], why, reason)]
            if dead:
                self._faults.died(dead, "deadline", 0, when)
            else:
                self._decider.decide_soon(DecisionCause.WANTED, when)
        else:
            text = f"{rank_words(late)} did not {attempt.asked} in time, and nobody in particular is to blame"
            self._faults.troubled("deadline", text, late, when)

    def refused(self, record: RankRecord, refusal: str, when: Moment) -> None:
        """A rank said that it cannot follow."""
        attempt = self._case.attempts.attempt
        assert attempt is not None
        text = f"rank {record.rank} could not {attempt.asked}: {refusal}"
        if attempt.saves:
            self._not_saved(text, when)
            return
        if refusal.startswith(WOULD_BE_WRONG):
            self._faults.doubted("refusal", f"rank {record.rank} says that {refusal}", [record.rank], when)
            return
        if record.rank in attempt.newcomers and attempt.state is AttemptState.QUIESCE:
            if self._members.give_up(record, GivenUp.NOT_FOLLOWED, f"its set-up failed: {refusal}"):
                self._faults.died([record.rank], "set-up", 0, when)
            return
        self._faults.troubled("refusal", text, [record.rank], when)
