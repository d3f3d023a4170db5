"""Repairs: what happens to ranks and nodes, and what it means to the repair that is open, if one is.

The front of the room: the manager and the talk with the nodes say here who has left, come back, moved or knows more.
What can go wrong, and what follows:

- *Ranks wait in a repair that nobody leads* (a manager without its journal): an incident of its own ends it.
- *Somebody knows a newer epoch*: this manager has lost its journal, and what it has ordered is over.
- *Ranks that were given up for their silence return*: if nothing else is wrong, the attempt goes on with them.

Its parts: what is open (case), what has gone wrong (faults), what is decided (decider), how the attempt goes on
(course), whether the job is over (ending), and who is there at all (attendance).

Invariants: the epoch grows with every newer one heard of; an incident has a deadline, or waits for ranks whose
launcher is not ours. Not here: how an attempt is led (attempts), who is waited for (waiting, attendance), and what
people are told (notices).
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.messages import RankReport, Unmended
from taskd.core.records import RankRecord
from taskd.core.repair.attendance import Attendance
from taskd.core.repair.case import Case
from taskd.core.repair.course import Course
from taskd.core.repair.decider import Decider
from taskd.core.repair.decision import DecisionCause, DecisionState
from taskd.core.repair.ending import Ending
from taskd.core.repair.faults import Faults
from taskd.core.repair.incident import IncidentCause, IncidentState
from taskd.core.repair.placement import Rules
from taskd.core.times import Moment, earliest
from taskd.core.types import Outcome, RankState, Stage
from taskd.core.words import cut, rank_words


class Repairs:
    """Puts the parts of a repair together, and says which of them an event concerns."""

    def __init__(self, job: Job, rules: Rules) -> None:
        self._job = job
        self._members = job.members
        self.rules = rules
        self.attendance = Attendance(job.members)
        self.case = Case(job, rules.spare_wait_ns)
        self.ending = Ending(job, rules, self.case, self.attendance)
        self._decider = Decider(job, rules, self.case, self.attendance, self.ending)
        self.faults = Faults(job, rules, self.case, self._decider)
        self._course = Course(job, self.case, self._decider, self.faults)

    def left(self, rank: int, when: Moment) -> None:
        """A rank has ended in good order."""
        if not self.case.attempts.leave(rank):
            self.faults.troubled("left", f"rank {rank} ended in good order and left a repair unfinished", [rank], when)
            return
        self._course.go_on(when)
        self.back([rank], when)

    def back(self, ranks: Iterable[int], when: Moment) -> None:
        """These ranks are there (again), or have left for good."""
        incident = self.case.incident
        self.attendance.gone_at = None
        if incident is None or incident.state is IncidentState.REPAIRING:
            return
        incident.missing.difference_update(ranks)
        if not incident.missing and self.case.decision.state is not DecisionState.TROUBLED:  # else that mends nothing
            self.case.close(IncidentCause.BACK, Outcome.OBSERVED, "all of its ranks are back or have left", when.now)

    def returned(self, ranks: list[int], when: Moment) -> None:
        """These ranks had been given up for their node's silence, and live."""
        self.back(ranks, when)
        if self.case.attempts.attempt is None:
            return
        text = f"{rank_words(ranks)} had only been silent"
        if self.case.attempts.placing:
            self.faults.troubled("returned", text, ranks, when)
        elif self.case.decision.state is DecisionState.GATHERING and not self._members.counts[RankState.DEAD]:
            # They were to be replaced in a moment. Nothing else is wrong: the attempt goes on with them.
            self.case.decision.settle(DecisionCause.RETURNED)
            assert self.case.incident is not None
            self.case.incident.note(text)
            self._job.note("returned", text)
            self._course.go_on(when)

    def moved(self, ranks: list[int], when: Moment) -> None:
        """Reports of ranks that a repair watches, or that are news."""
        records = [self._members.ranks[rank] for rank in ranks]
        newest = max(records, key=lambda record: record.report.epoch if record.report else 0)
        if newest.report is not None and newest.report.epoch > self._job.epoch:
            self.adopt(newest.report.epoch, f"rank {newest.rank} is in", [newest.rank], when)
        for rank, record in zip(ranks, records, strict=True):
            report, incident, attempt = record.report, self.case.incident, self.case.attempts.attempt
            if report is None or self._job.over is not None:
                continue
            if self._raised(record, report, when):
                continue
            if attempt is not None:
                assert incident is not None
                if attempt.outrun(report) and not incident.overtaken:
                    text = f"rank {rank} runs in epoch {report.epoch}, this manager remembers no order to do so"
                    self._overtake(text, [rank], when)
                refusal = self.case.attempts.follow(rank, when.at)
                if refusal and not self.case.decision.pending:
                    self._course.refused(record, refusal, when)
            elif report.state is RankState.ALIVE and self._job.compare(record) and self.rules.recover:
                text = f"rank {rank} waits in a repair of epoch {report.epoch} that nobody leads"
                if incident is None:
                    self._members.trained = True  # or there would have been nothing to repair
                    self.faults.troubled("stranded", text, [rank], when)
        self._course.go_on(when)

    def _raised(self, record: RankRecord, report: RankReport, when: Moment) -> bool:
        """A rank runs and cannot go on: an error has left its step. One of an older epoch is parked anyway."""
        attempt = self.case.attempts.attempt
        runs = report.state is RankState.ALIVE and report.stage is Stage.RUNNING
        older = attempt is not None and report.epoch < attempt.epoch
        if report.ok or not runs or older or self.case.decision.pending:
            return False
        if not self.faults.raised(record.rank, report.reason, when):
            text = cut(f"no repair is made for what rank {record.rank} raised alone")
            self._job.tell(record.where, Unmended(self._job.term, self._job.epoch, text))
            self._job.note("unmended", f"rank {record.rank} raised {report.reason}: {text}", record.rank)
        return True

    def roomier(self, when: Moment) -> None:
        """A node came up: it may have room for a rank that waits for a seat."""
        if self.case.attempts.placing and not self.case.decision.pending:
            self._decider.decide_soon(DecisionCause.WANTED, when)

    def adopt(self, epoch: int, who: str, ranks: list[int], when: Moment) -> bool:
        """Somebody knows a newer epoch: this manager has lost its journal. False: nobody can have come so far."""
        if epoch - self._job.epoch > limits.MAX_LEAP:
            return False
        text = f"{who} epoch {epoch}, this manager knew of {self._job.epoch}: going on from {epoch}"
        self._job.note("epoch", text)
        self._job.epoch = epoch
        self._overtake(text, ranks, when)
        return True

    def _overtake(self, text: str, ranks: list[int], when: Moment) -> None:
        """What was ordered is over, and what the open incident says: the journal does not know how it went on."""
        self._job.order = None
        self._job.behind.clear()
        if self.case.incident is not None:
            self.case.incident.overtake()
        if self.case.attempts.attempt is not None:
            self._members.trained = True  # a repair nobody needed costs a moment, a respawn would cost the training
            self.faults.troubled("epoch", text, ranks, when)

    def tick(self, when: Moment) -> bool:
        """Deadlines. True: one was due, and something changed."""
        due = self.deadline()
        if due is None or when.at < due:
            return False
        incident, attempt = self.case.incident, self.case.attempts.attempt
        if self.case.decision.is_due(when.at) or (incident is not None and incident.settles(when.at)):
            self._decider.decide(when)
        elif attempt is not None and not self.case.decision.pending and attempt.waiting.deadline <= when.at:
            self._course.overdue(attempt, when)
        elif (unseen := self.attendance.unseen(when.at)) and self.rules.recover and incident is None:
            for record in unseen:
                self._members.kill(record, 0, False, "it was never seen")
            self.faults.died([record.rank for record in unseen], "absent", 0, when)
        else:
            self.ending.check_grace(when)
        return True

    def deadline(self) -> int | None:
        """When `tick` has to be called, in waking time."""
        return earliest(self.case.deadline(), self.attendance.deadline())

    def restarted(self, at: int) -> None:
        """The manager was away: its clocks start anew."""
        self.case.restart(at)
        self.attendance.restart(at)

    def told_all(self, node: str, at: int) -> bool:
        """A node has said how everything stands with it. True: a manager that is back has waited for that."""
        until, news = self.attendance.hears_until, self.attendance.told_all(node)
        if news and self.attendance.hears_until is None:
            self.case.decision.hurry(until, at)
        return news
