"""Repairs: the events of ranks and nodes, and what they mean for the open repair, if there is one.

This is the entry point of the package. The manager and the node protocol report here which ranks have left, come back,
moved, or know a newer epoch. Failure modes, and what follows:

- *Ranks wait in a repair that no manager leads* (the manager lost its journal): a new incident ends that repair.
- *A rank or node knows a newer epoch*: this manager has lost its journal, so its own orders are over.
- *Ranks given up for silence return*: if nothing else is wrong, the attempt continues with them.

Its parts: the open incident (case), the faults (faults), the decision (decider), the next stage of the attempt
(course), whether the job is over (ending), which ranks are there at all (attendance), and what their devices report
(devices).

Invariants: the epoch grows with every newer epoch that is heard of. An incident has a deadline, or waits for ranks of
an external launcher. Not here: how an attempt is led (attempts), which ranks are waited for (waiting, attendance), and
what people are told (notices).
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.messages import RankReport, Unmended
from taskd.core.policy.ruling import History
from taskd.core.records import RankRecord
from taskd.core.repair.attendance import Attendance
from taskd.core.repair.case import Case
from taskd.core.repair.course import Course
from taskd.core.repair.decider import Decider
from taskd.core.repair.decision import DecisionCause, DecisionState
from taskd.core.repair.devices import Devices
from taskd.core.repair.ending import Ending
from taskd.core.repair.faults import Faults
from taskd.core.repair.incident import IncidentCause, IncidentState
from taskd.core.repair.placement import Rules
from taskd.core.starts_over import StartsOver
from taskd.core.times import Moment, earliest
from taskd.core.types import Outcome, RankState, Stage
from taskd.core.words import cut, rank_words


class Repairs:
    """Connects the parts of a repair, and passes each event to the part that it concerns."""

    def __init__(self, job: Job, rules: Rules) -> None:
        self._job = job
        self._members = job.members
        self.rules = rules
        self.attendance = Attendance(job.members)
        self.case = Case(job, rules.spare_wait_ns, History(rules.policy))
        self.ending = Ending(job, rules, self.case, self.attendance)
        self._decider = Decider(job, rules, self.case, self.attendance, self.ending)
        self.faults = Faults(job, rules, self.case, self._decider)
        self.devices = Devices(job, self.case)
        self._course = Course(job, self.case, self._decider, self.faults)

    @property
    def starts_over(self) -> StartsOver:
        """What all starts of all ranks have cost, and what makes another one necessary."""
        return self._job.starts_over

    def left(self, rank: int, when: Moment) -> None:
        """A rank has ended in good order. A policy may say that the job is complete then, whatever others do."""
        if self.ending.completes(when):
            return
        if not self.case.attempts.leave(rank):
            self.faults.troubled("left", f"rank {rank} ended in good order and left a repair unfinished", [rank], when)
            return
        self._course.go_on(when)
        self.back([rank], when)

    def back(self, ranks: Iterable[int], when: Moment) -> None:
        """These ranks are there (again), or have left for good: a watched incident may close."""
        incident = self.case.incident
        self.attendance.gone_at = None
        if incident is None or incident.state is IncidentState.REPAIRING:
            return
        incident.missing.difference_update(ranks)
        if not incident.missing and self.case.decision.state is not DecisionState.TROUBLED:  # else trouble remains
            self.case.close(IncidentCause.BACK, Outcome.OBSERVED, "all of its ranks are back or have left", when.now)

    def returned(self, ranks: list[int], when: Moment) -> None:
        """These ranks were given up because their node was silent, but they live."""
        self.back(ranks, when)
        if self.case.attempts.attempt is None:
            return
        text = f"{rank_words(ranks)} had only been silent"
        if self.case.attempts.placing or self.case.attempts.resting:
            self.faults.troubled("returned", text, ranks, when)
        elif self.case.decision.state is DecisionState.GATHERING and not self._members.counts[RankState.DEAD]:
            # They would have been replaced in a moment. Nothing else is wrong: the attempt continues with them.
            self.case.decision.settle(DecisionCause.RETURNED)
            assert self.case.incident is not None
            self.case.incident.note(text)
            self._job.note("returned", text)
            self._course.go_on(when)

    def moved(self, ranks: list[int], when: Moment) -> None:
        """Take new reports of ranks, and of ranks that a repair watches."""
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
        """Handle an error that has left the step of a running rank. Return False if there is none, or if it needs no
        answer: a rank of an older epoch is parked anyway."""
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
        """A node came up, and may have room for a rank that waits for a seat."""
        if self.case.attempts.placing and not self.case.decision.pending:
            self._decider.decide_soon(DecisionCause.WANTED, when)

    def adopt(self, epoch: int, who: str, ranks: list[int], when: Moment) -> bool:
        """`who` knows a newer epoch: this manager has lost its journal. Return False if the epoch is impossibly new."""
        if epoch - self._job.epoch > limits.MAX_LEAP:
            return False
        text = f"{who} epoch {epoch}, this manager knew of {self._job.epoch}: going on from {epoch}"
        self._job.note("epoch", text)
        self._job.epoch = epoch
        self._overtake(text, ranks, when)
        return True

    def _overtake(self, text: str, ranks: list[int], when: Moment) -> None:
        """Void the order in force and the findings of the open incident: the journal does not know what came after."""
        self._job.order = None
        self._job.behind.clear()
        if self.case.incident is not None:
            self.case.incident.overtake()
        if self.case.attempts.attempt is not None:
            self._members.trained = True  # a needless repair costs a moment, a respawn costs the training
            self.faults.troubled("epoch", text, ranks, when)

    def tick(self, when: Moment) -> bool:
        """Handle the deadline that is due. Return True if there was one, so that something changed."""
        due = self.deadline()
        if due is None or when.at < due:
            return False
        incident, attempt = self.case.incident, self.case.attempts.attempt
        if self.case.decision.is_due(when.at) or (incident is not None and incident.settles(when.at)):
            self._decider.decide(when)
        elif attempt is not None and not self.case.decision.pending and attempt.waiting.deadline <= when.at:
            self._course.overdue(attempt, when)
        elif (unseen := self.attendance.unseen(when.at)) and self.rules.recover and incident is None:
            self._members.forgotten |= self._job.term > 1  # this manager has replaced one that may have known of them
            for record in unseen:
                self._members.kill(record, 0, False, "it was never seen")
            self.faults.died([record.rank for record in unseen], "absent", 0, when)
        else:
            self.ending.check_grace(when)
        return True

    def deadline(self) -> int | None:
        """When `tick` has to be called next, in waking time."""
        return earliest(self.case.deadline(), self.attendance.deadline())

    def restarted(self, at: int) -> None:
        """The manager was away: its clocks start again."""
        self.case.restart(at)
        self.attendance.restart(at)

    def told_all(self, node: str, at: int) -> bool:
        """A node has reported everything. Return True if a restarted manager was waiting for that."""
        until, news = self.attendance.hears_until, self.attendance.told_all(node)
        if news and self.attendance.hears_until is None:
            self.case.decision.hurry(until, at)
        return news
