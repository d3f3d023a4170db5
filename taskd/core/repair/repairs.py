"""From a death to an order: one open incident, one attempt at its repair, and the order that says how the job stands.

Composes the ladder (what is decided) and attempts (how far its repair is). What can go wrong, and what follows:

- *Faults come in a burst*: what follows a decision at once is gathered and answered together (decision).
- *A fault in any stage*: the incident grows, the ladder is asked again, the next attempt has a newer epoch.
- *Too many tries of one strategy*: it is exhausted. No room for a lost rank in time: the same.
- *Ranks wait in a repair that nobody leads* (a manager without its journal): an incident of its own ends it.
- *A repair was led on* (the journal has lost its end): decided anew, when everybody has said how it stands.

Invariants: the epoch grows with every attempt and with every newer one heard of; at most one incident is open; it has
a deadline, or waits for ranks whose launcher is not ours. Not here: how an attempt is led (attempts), who is waited for
(patience, attendance), and what people are told (notices).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from taskd.core import limits
from taskd.core.effects import EndJob
from taskd.core.job import Job
from taskd.core.records import RankRecord
from taskd.core.repair import notices, placement
from taskd.core.repair.attempt import Attempt, AttemptState
from taskd.core.repair.attempts import Attempts, Progress
from taskd.core.repair.attendance import ALL_DONE, NOBODY_BACK, Attendance
from taskd.core.repair.decision import DecisionCause, DecisionState, NextDecision
from taskd.core.repair.incident import Incident, IncidentCause, IncidentState
from taskd.core.repair.ladder import Decision, decide, describe, exit_code_of
from taskd.core.repair.placement import Rules
from taskd.core.times import Moment, earliest
from taskd.core.types import Outcome, RankState, Strategy
from taskd.core.words import cut, rank_words, verb


class Repairs:
    """Owns the incidents and the attempt under way; moves the job's epoch and order."""

    def __init__(self, job: Job, rules: Rules) -> None:
        self.job = job
        self.members = job.members
        self.rules = rules
        self.incident: Incident | None = None
        self.attempts = Attempts(job, rules.spare_wait_ns)
        self.history: deque[Incident] = deque(maxlen=limits.MAX_KEPT_INCIDENTS - 1)
        self.decision = NextDecision()
        self.attendance = Attendance(job.members)

    @property
    def attempt(self) -> Attempt | None:
        """The attempt under way."""
        return self.attempts.attempt

    # ---- what happened ----------------------------------------------------------------------------------------

    def died(self, ranks: list[int], kind: str, age_ns: int, when: Moment) -> None:
        """These ranks are dead. `age_ns`: how long ago the fault may have been, if that is known."""
        if self.job.over is not None:
            return
        for rank in ranks:
            self.members.ranks[rank].forgive(when.now)
        losses = {rank: placement.loss_of(self.members.ranks[rank]) for rank in ranks}
        incident = self._open(kind, ranks, describe(tuple(losses.values())), age_ns, when.now)
        incident.missing.update(ranks)
        for rank, loss in losses.items():
            incident.fallen.setdefault(rank, loss)  # what began it, and not the newcomers that died of it
        done = tuple(loss for loss in losses.values() if loss.finished)
        if done and self.rules.recover:
            self.job.note("done", notices.done(done))
        settles = incident.state is IncidentState.SETTLING and len(done) < len(losses)
        if settles and placement.others_may_follow(self.members, self.rules):
            if incident.settles_at is None:
                incident.settles_at = when.at + limits.SETTLE_NS
            return
        if incident.state is IncidentState.OBSERVING and not self.rules.recover:
            return  # nothing can be decided otherwise, however many more die
        wait_ns = limits.LEAVE_NS if all(loss.left for loss in losses.values()) else 0
        self._decide_soon(DecisionCause.WANTED, when, wait_ns)

    def replaced(self, ranks: list[int], when: Moment) -> None:
        """Somebody else has started these ranks again, before the death of the old ones was told."""
        text = f"{rank_words(ranks)} {verb(len(ranks), 'was', 'were')} started again, not by this manager"
        if self.rules.recover or self.job.over is not None:
            self.job.note("replaced", text)
            return
        incident = self._open("process", ranks, text, 0, when.now)
        incident.missing.update(ranks)
        if incident.state is IncidentState.SETTLING:
            self._decide(when)
            incident.missing.update(ranks)

    def troubled(self, kind: str, trouble: str, ranks: Iterable[int], when: Moment) -> None:
        """The job needs a repair although nobody died."""
        if self.job.over is not None:
            return
        self._open(kind, ranks, trouble, 0, when.now)
        if kind in ("refusal", "epoch"):  # what explains a refusal, or what else is new, is filed first
            self.decision.want(DecisionCause.TROUBLE, when.at + (limits.REFUSAL_NS if kind == "refusal" else 0))
        else:
            self._decide_soon(DecisionCause.TROUBLE, when)

    def doubted(self, trouble: str, ranks: Iterable[int], when: Moment) -> None:
        """What ranks hold is not what an undisturbed run would hold, so none of it is gone on with."""
        if self.job.over is not None:
            return
        self._open("proof", ranks, trouble, 0, when.now).state_lost = True
        self._decide_soon(DecisionCause.TROUBLE, when)

    def left(self, rank: int, when: Moment) -> None:
        """A rank has ended in good order."""
        if not self.attempts.leave(rank):
            self.troubled("left", f"rank {rank} ended in good order and left a repair unfinished", [rank], when)
            return
        self._go_on(when)
        self.back([rank], when)

    def back(self, ranks: Iterable[int], when: Moment) -> None:
        """These ranks are there (again), or have left for good."""
        incident = self.incident
        self.attendance.gone_at = None
        if incident is None or incident.state is IncidentState.REPAIRING:
            return
        incident.missing.difference_update(ranks)
        if not incident.missing and self.decision.state is not DecisionState.TROUBLED:  # else that mends nothing
            self._close(IncidentCause.BACK, Outcome.OBSERVED, "all of its ranks are back or have left", when.now)

    def returned(self, ranks: list[int], when: Moment) -> None:
        """These ranks had been given up for their node's silence, and live."""
        self.back(ranks, when)
        if self.attempt is None:
            return
        text = f"{rank_words(ranks)} had only been silent"
        if self.attempts.placing:
            self.troubled("returned", text, ranks, when)
        elif self.decision.state is DecisionState.GATHERING and not self.members.counts[RankState.DEAD]:
            # They were to be replaced in a moment. Nothing else is wrong: the attempt goes on with them.
            self.decision.settle(DecisionCause.RETURNED)
            assert self.incident is not None
            self.incident.note(text)
            self.job.note("returned", text)
            self._go_on(when)

    def moved(self, ranks: list[int], when: Moment) -> None:
        """Reports of ranks that a repair watches, or that are news."""
        records = [self.members.ranks[rank] for rank in ranks]
        newest = max(records, key=lambda record: record.report.epoch if record.report else 0)
        if newest.report is not None and newest.report.epoch > self.job.epoch:
            self.adopt(newest.report.epoch, f"rank {newest.rank} is in", [newest.rank], when)
        for rank, record in zip(ranks, records, strict=True):
            report = record.report
            if report is None or self.job.over is not None:
                continue
            if self.attempt is not None:
                assert self.incident is not None
                if self.attempt.outrun(report) and not self.incident.overtaken:
                    text = f"rank {rank} runs in epoch {report.epoch}, this manager remembers no order to do so"
                    self._overtake(text, [rank], when)
                refusal = self.attempts.follow(rank, when.at)
                if refusal and not self.decision.pending:
                    self._refused(record, refusal, when)
            elif report.state is RankState.ALIVE and self.job.compare(record) and self.rules.recover:
                text = f"rank {rank} waits in a repair of epoch {report.epoch} that nobody leads"
                if self.incident is None:
                    self.members.trained = True  # or there would have been nothing to repair
                    self.troubled("stranded", text, [rank], when)
        self._go_on(when)

    def roomier(self, when: Moment) -> None:
        """A node came up: it may have room for a rank that waits for a seat."""
        if self.attempts.placing and not self.decision.pending:
            self._decide_soon(DecisionCause.WANTED, when)

    @property
    def deciding(self) -> bool:
        """A fault waits for its decision: the order in force is not the last word."""
        return self.decision.pending or (self.incident is not None and self.incident.settles_at is not None)

    @property
    def busy(self) -> bool:
        """A fault waits for its decision, or ranks are brought to one state."""
        attempt = self.attempt
        return self.deciding or (attempt is not None and attempt.state is not AttemptState.REDO)

    @property
    def behind(self) -> set[int]:
        """Ranks that have yet to follow the order in force."""
        attempt = self.attempt
        if attempt is None:
            return self.job.behind
        return set() if attempt.state is AttemptState.REDO else attempt.waiting

    def tick(self, when: Moment) -> bool:
        """Deadlines. True: one was due, and something changed."""
        due = self.deadline()
        if due is None or when.at < due:
            return False
        incident, attempt = self.incident, self.attempt
        if self.decision.is_due(when.at) or (incident is not None and incident.settles(when.at)):
            self._decide(when)
        elif attempt is not None and not self.decision.pending and attempt.deadline <= when.at:
            self._overdue(attempt, when)
        elif (unseen := self.attendance.unseen(when.at)) and self.rules.recover and incident is None:
            for record in unseen:
                self.members.kill(record, 0, False, "it was never seen")
            self.died([record.rank for record in unseen], "absent", 0, when)
        elif self.attendance.gone_for_good(when.at) and self._bystander:
            lost = placement.losses(self.members)
            self._finish(exit_code_of(lost), f"{describe(lost)}, and {NOBODY_BACK}", when.now)
        return True

    def deadline(self) -> int | None:
        """When `tick` has to be called, in waking time."""
        settles_at = None if self.incident is None else self.incident.settles_at
        stage_ends_at = None if self.attempt is None or self.decision.pending else self.attempt.deadline
        return earliest(self.decision.due_at, settles_at, stage_ends_at, self.attendance.deadline())

    def restarted(self, at: int) -> None:
        """The manager was away: its clocks start anew."""
        self.decision.restart(at)
        self.attendance.restart(at)
        if self.incident is not None:
            self.incident.restart_clocks(at)
        if self.attempt is not None:
            self.attempt.restart_clock(at)

    def told_all(self, node: str, at: int) -> bool:
        """A node has said how everything stands with it. True: a manager that is back has waited for that."""
        until, news = self.attendance.hears_until, self.attendance.told_all(node)
        if news and self.attendance.hears_until is None:
            self.decision.hurry(until, at)
        return news

    def check_end(self, when: Moment) -> None:
        """Is there anybody left to train? Constant time: asked whenever a rank ends."""
        if self.job.over is not None:
            return
        good = self.attendance.all_left()
        if good:
            done = describe(lost) if (lost := placement.losses(self.members)) else ""
            done = f"; {done} when {verb(len(lost), 'its', 'their')} work was done" if good is ALL_DONE else ""
            self._finish(0, f"{good}{done}{notices.started_over(self.job.restarts, self.job.steps_lost)}", when.now)
        elif self.attendance.nobody() and self._bystander:
            lost = placement.losses(self.members)
            if self.rules.recover and not any(loss.watched_only for loss in lost):
                self._finish(exit_code_of(lost), describe(lost), when.now)  # whoever could start them again has decided
            elif self.attendance.gone_at is None:
                self.attendance.gone_at = when.at

    @property
    def _bystander(self) -> bool:
        """Nobody here is going to start a rank again: at most its launcher is."""
        return self.incident is None or self.incident.state is IncidentState.OBSERVING

    # ---- incidents --------------------------------------------------------------------------------------------

    def _open(self, kind: str, ranks: Iterable[int], text: str, age_ns: int, now: int) -> Incident:
        """Open an incident, or let the open one grow."""
        incident = self.incident
        if incident is None:
            incident = self.incident = Incident(self.job.next_incident(), kind, now)
            self.job.incident = incident.id
            incident.detected(age_ns, now)
        else:
            incident.move(IncidentCause.GROWN)
        incident.trouble = text
        incident.concern(text, ranks, [self.members.ranks[rank].where for rank in ranks])
        self.job.note(kind, text)
        return incident

    def _close(self, cause: IncidentCause, outcome: Outcome, text: str, now: int) -> None:
        incident = self.incident
        assert incident is not None
        incident.close(cause, outcome, now)
        incident.note(text)
        self.job.note("closed", notices.closed(incident, text))
        self.history.append(incident)
        self.incident = None
        self.attempts.close()
        self.job.settle()
        self.decision.settle(DecisionCause.CLOSED)

    def adopt(self, epoch: int, who: str, ranks: list[int], when: Moment) -> bool:
        """Somebody knows a newer epoch: this manager has lost its journal. False: nobody can have come so far."""
        if epoch - self.job.epoch > limits.MAX_LEAP:
            return False
        text = f"{who} epoch {epoch}, this manager knew of {self.job.epoch}: going on from {epoch}"
        self.job.note("epoch", text)
        self.job.epoch = epoch
        self._overtake(text, ranks, when)
        return True

    def _overtake(self, text: str, ranks: list[int], when: Moment) -> None:
        """What was ordered is over, and what the open incident says: the journal does not know how it went on."""
        self.job.order = None
        self.job.behind.clear()
        if self.incident is not None:
            self.incident.overtake()
        if self.attempt is not None:
            self.members.trained = True  # a repair nobody needed costs a moment, a respawn would cost the training
            self.troubled("epoch", text, ranks, when)

    def _refused(self, record: RankRecord, refusal: str, when: Moment) -> None:
        """A rank said that it cannot follow."""
        assert self.attempt is not None
        text = f"rank {record.rank} could not {self.attempt.asked}: {refusal}"
        if record.rank in self.attempt.newcomers and self.attempt.state is AttemptState.QUIESCE:
            if self.members.condemn(record, f"its set-up failed: {refusal}"):
                self.died([record.rank], "set-up", 0, when)
            return
        self.troubled("refusal", text, [record.rank], when)

    # ---- decisions --------------------------------------------------------------------------------------------

    def _decide_soon(self, cause: DecisionCause, when: Moment, wait_ns: int = 0) -> None:
        """Decide now, or together with what else happens just after an earlier decision, or within this time."""
        assert self.incident is not None
        self.decision.want(cause, self.decision.gathered_at(when.at, self.incident.attempts, wait_ns))
        if self.decision.is_due(when.at):
            self._decide(when)

    def _decide(self, when: Moment) -> None:
        """Ask the ladder, and do what it says; a manager that is back hears everybody first."""
        incident = self.incident
        assert incident is not None
        incident.settles_at = None
        if self.rules.recover and (until := self.attendance.hears_until) is not None and when.at < until:
            self.decision.want(DecisionCause.WANTED, until)
            return
        self.decision.decided(when.at)
        if incident.overtaken and self.attendance.all_run(self.job.epoch):
            text = f"all ranks are at work in epoch {self.job.epoch}; how they were brought there is forgotten"
            self._close(IncidentCause.BACK, Outcome.OBSERVED, text, when.now)
            return
        incident.overtaken = False
        attempt = self.attempt
        waiting = attempt.strategy if attempt is not None and self.attempts.placing else None
        repairing = attempt is not None and attempt.state is not AttemptState.REDO
        lost = set(self.members.in_state(RankState.DEAD))
        same_try = incident.answers(lost)
        decision = self._ask(incident, repairing)
        last = placement.last_start(self.members, self.rules)
        while not same_try and decision.strategy is not waiting and incident.worn_out(decision.strategy, last):
            incident.exhausted.add(decision.strategy)
            decision = self._ask(incident, repairing)
        self.attempts.drop(incident, when)
        incident.follow(decision)
        self.job.note("decision", decision.reason)
        if decision.strategy is Strategy.EXIT:
            self._finish(decision.exit_code, decision.reason, when.now)
        elif decision.strategy is Strategy.OBSERVE:
            incident.move(IncidentCause.OBSERVE)
            incident.missing = lost
            self.attempts.close()
        elif self.job.epoch >= limits.MAX_EPOCH:
            self._finish(1, "the numbers of epochs are used up", when.now)
        else:
            incident.move(IncidentCause.REPAIR)
            incident.trouble = ""
            self.job.behind.clear()
            told = notices.beginning(incident, decision, self.members, self.rules)
            self.attempts.begin(incident, decision, same_try or decision.strategy is waiting, told, when)

    def _ask(self, incident: Incident, repairing: bool) -> Decision:
        return decide(placement.situation(self.members, incident, self.rules, repairing))

    def _go_on(self, when: Moment) -> None:
        """The attempt's next stage, or its end. A fault that is being gathered holds it where it is."""
        if self.attempt is None or self.decision.pending:
            return
        assert self.incident is not None
        progress = self.attempts.advance(self.incident, when)
        if progress is Progress.HEALED:
            self._mended("every rank has done its first step", when.now)
        elif progress is Progress.STATE_LOST:
            self.incident.state_lost = True
            self.troubled("state", f"no survivor holds a whole state{self.attempt.why_useless}", [], when)

    def _mended(self, proof: str, now: int) -> None:
        """Training goes on: with all that was done, or from the beginning."""
        assert self.incident is not None
        kind = "over" if self.incident.restarts else "healed"
        self.job.note(kind, notices.mended(self.incident, proof, now))
        self._close(IncidentCause.HEALED, self.incident.good_end, proof, now)

    def _overdue(self, attempt: Attempt, when: Moment) -> None:
        """A stage's deadline has passed."""
        assert self.incident is not None
        if self.attempts.placing:
            self.incident.exhausted.add(attempt.strategy)
            self.attempts.drop(self.incident, when)
            text = f"no node with room came within {-(-self.rules.spare_wait_ns // limits.SECOND)} s"
            self.troubled("spare", text, [], when)
        elif self.members.all_silent:
            attempt.restart_clock(when.at)  # whoever is late may have followed long ago, and nobody could take over
        elif not (late := attempt.overdue(when.at)):
            if text := notices.waits(attempt, when.at):
                self.job.note("waits", text)
        elif attempt.state is AttemptState.REDO:
            self._mended(f"{rank_words(late)} showed no finished step in time", when.now)
        elif blamed := attempt.to_blame(late):
            reason = f"did not {attempt.asked} in time"
            dead = [rank for rank in blamed if self.members.condemn(self.members.ranks[rank], reason)]
            if dead:
                self.died(dead, "deadline", 0, when)
            else:
                self._decide_soon(DecisionCause.WANTED, when)
        else:
            text = f"{rank_words(late)} did not {attempt.asked} in time, and nobody in particular is to blame"
            self.troubled("deadline", text, late, when)

    # ---- the end ----------------------------------------------------------------------------------------------

    def _finish(self, exit_code: int, reason: str, now: int) -> None:
        """The job is over."""
        self.attendance.gone_at = None
        if self.incident is not None:
            good = exit_code == 0 or self.incident.strategy is Strategy.OBSERVE
            ending = (IncidentCause.BACK, Outcome.OBSERVED) if good else (IncidentCause.EXIT, Outcome.EXITED)
            self._close(*ending, reason, now)
        if text := notices.ended(self.job.restarts, self.job.steps_lost):
            self.job.note("end", text)
        self.job.finish(exit_code, reason)
        self.job.effects.append(EndJob(exit_code, cut(reason)))
