"""The decider: it asks the ladder what to do about a fault when it is time, and begins what the ladder says.

Failure modes, and what follows:

- *Faults come in a burst*: faults soon after a decision are gathered and answered together (decision).
- *Too many tries of one strategy*: it is exhausted, and the ladder is asked again. If a lost rank finds no room in
  time, the same happens.
- *A repair went further than this manager knows* (the journal has lost its end): the decider decides again, after all
  nodes have reported.

Invariant: the epoch grows with every attempt. Not here: which strategy is right (ladder), how an attempt is led
(attempts).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.events import Reached
from taskd.core.job import Job
from taskd.core.policy.rules import Scope
from taskd.core.repair import notices, placement
from taskd.core.repair.attendance import Attendance
from taskd.core.repair.case import Case
from taskd.core.repair.decision import DecisionCause
from taskd.core.repair.ending import Ending
from taskd.core.repair.incident import Incident, IncidentCause
from taskd.core.repair.ladder import REPAIRS, Decision, Situation, decide, faults
from taskd.core.repair.placement import Rules
from taskd.core.repair.stages import AttemptState
from taskd.core.times import Moment
from taskd.core.types import GivenUp, Outcome, RankState, Strategy


class Decider:
    """Decides what is done about the open incident."""

    def __init__(self, job: Job, rules: Rules, case: Case, attendance: Attendance, ending: Ending) -> None:
        self._job = job
        self._members = job.members
        self._rules = rules
        self._case = case
        self._attendance = attendance
        self._ending = ending

    def decide_soon(self, cause: DecisionCause, when: Moment, wait_ns: int = 0) -> None:
        """Decide now; or after `wait_ns`; or, soon after an earlier decision, when its gathering time ends."""
        incident, decision = self._case.incident, self._case.decision
        assert incident is not None
        decision.want(cause, decision.gathered_at(when.at, incident.attempts, wait_ns))
        if decision.is_due(when.at):
            self.decide(when)

    def decide(self, when: Moment) -> None:
        """Ask the ladder, and do what it says. A restarted manager first waits for the reports of all nodes."""
        incident = self._case.incident
        assert incident is not None
        incident.settles_at = None
        if self._rules.recover and (until := self._attendance.hears_until) is not None and when.at < until:
            self._case.decision.want(DecisionCause.WANTED, until)
            return
        self._case.decision.decided(when.at)
        if incident.overtaken and self._attendance.all_run(self._job.epoch):
            text = f"all ranks are at work in epoch {self._job.epoch}; how they were brought there is forgotten"
            self._case.close(IncidentCause.BACK, Outcome.OBSERVED, text, when.now)
            return
        incident.overtaken = False
        attempt = self._case.attempts.attempt
        attempts = self._case.attempts
        waiting = attempt.strategy if attempt is not None and (attempts.placing or attempts.resting) else None
        repairing = attempt is not None and attempt.state is not AttemptState.REDO
        lost = set(self._members.in_state(RankState.DEAD))
        if lost:
            incident.checkpoint.stops = ""  # what an operator wants has to wait for what a death needs
        if self._job.starts_over.row.times and incident.is_own:  # then it matters how far the job is
            self._job.journal.append(Reached(self._members.steps_done))
        same_try = incident.answers(lost)
        found = self._look(incident, repairing, when.now)
        decision = decide(found)
        if self._widens(incident, found, decision):
            lost = set(self._members.in_state(RankState.DEAD))
            incident.answers(lost)
            decision = decide(self._look(incident, repairing, when.now))
        while not same_try and decision.strategy is not waiting and incident.worn_out(decision.strategy):
            incident.exhausted.add(decision.strategy)
            decision = decide(self._look(incident, repairing, when.now))
        self._case.attempts.drop(incident, when)
        incident.follow(decision)
        self._job.note("decision", decision.reason)
        if decision.strategy is Strategy.EXIT:
            text = f"{decision.reason}{notices.saved(incident)}"
            self._ending.finish(decision.exit_code, text, when.now, decision.kind)
        elif decision.strategy is Strategy.OBSERVE:
            incident.move(IncidentCause.OBSERVE)
            incident.missing = lost
            self._case.attempts.close()
        elif self._job.epoch >= limits.MAX_EPOCH:
            self._ending.finish(1, "the numbers of epochs are used up", when.now)
        elif decision.strategy is Strategy.DUMP:
            incident.move(IncidentCause.REPAIR)
            self._job.behind.clear()
            self._case.attempts.save(incident, same_try, decision.reason, when)
        else:
            incident.move(IncidentCause.REPAIR)
            incident.trouble = ""
            self._job.behind.clear()
            told = notices.beginning(incident, decision, self._members, self._rules)
            faulty = lost - {loss.rank for loss in found.losses if loss.ended}
            hold_ns = self._case.restarts.hold_ns(faulty, when.now)
            self._case.attempts.begin(incident, decision, same_try or decision.strategy is waiting, told, when, hold_ns)
            started = sorted(faulty - {*self._members.in_state(RankState.DEAD)})
            self._case.restarts.started(faults(found.losses), started, when.now)

    def _look(self, incident: Incident, repairing: bool, now: int) -> Situation:
        history, repair_ns = self._case.restarts, self._case.repair_ns(now)
        over = self._job.starts_over
        return placement.situation(self._members, incident, self._rules, repairing, history, repair_ns, over, now)

    def _widens(self, incident: Incident, found: Situation, decision: Decision) -> bool:
        """Give up the ranks beside the lost ones if the policy says that their whole nodes start again."""
        if found.ruling.scope is not Scope.NODE or decision.strategy not in REPAIRS:
            return False
        beside = placement.with_their_nodes(self._members, [fault.rank for fault in faults(found.losses)])
        for record in beside:
            self._members.give_up(record, GivenUp.WITH_ITS_NODE, "starts again with the rest of its node")
            incident.ranks.add(record.rank)
            incident.fallen.setdefault(record.rank, placement.loss_of(self._members, record))
        return bool(beside)
