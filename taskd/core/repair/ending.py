"""The end of the job: whether any rank is left to train, and how the job ends.

Failure modes, and what follows:

- *Every rank has gone, and an external launcher may bring them back*: a grace period (attendance), then the job ends.
- *A rank dies when the others have left*: a repair that could start it again is decided first. The job does not end
  while a repair is open.

Invariant: a job ends once, and its open incident is closed then. It does NOT decide that a fault cannot be repaired
(ladder).
"""

from __future__ import annotations

from taskd.core.effects import EndJob
from taskd.core.job import Job
from taskd.core.policy.rules import Complete
from taskd.core.repair import notices, placement
from taskd.core.repair.attendance import ALL_DONE, NOBODY_BACK, Attendance
from taskd.core.repair.case import Case
from taskd.core.repair.incident import IncidentCause
from taskd.core.repair.ladder import describe, exit_code_of
from taskd.core.repair.placement import Rules
from taskd.core.times import Moment
from taskd.core.types import Outcome, RankState, StopKind, Strategy
from taskd.core.words import cut, rank_words, verb


class Ending:
    """Checks whether the job is over, and ends it."""

    def __init__(self, job: Job, rules: Rules, case: Case, attendance: Attendance) -> None:
        self._job = job
        self._rules = rules
        self._case = case
        self._attendance = attendance

    def check(self, when: Moment) -> None:
        """End the job if no rank is left to train. Takes constant time, since it runs whenever a rank ends."""
        if self._job.over is not None:
            return
        good = self._attendance.all_left()
        if good:
            done = describe(lost) if (lost := placement.losses(self._job.members)) else ""
            done = f"; {done} when {verb(len(lost), 'its', 'their')} work was done" if good is ALL_DONE else ""
            over = notices.started_over(self._job.starts_over)
            self.finish(0, f"{good}{done}{over}", when.now)
        elif self._attendance.nobody() and self._case.only_watched:
            lost = placement.losses(self._job.members)
            if self._rules.recover and not any(loss.watched_only for loss in lost):
                self.finish(exit_code_of(lost), describe(lost), when.now)  # the ladder has decided to start none
            elif self._attendance.gone_at is None:
                self._attendance.gone_at = when.at

    def completes(self, when: Moment) -> bool:
        """End the job well if the policy calls it complete, although not all ranks have left. True: it has ended."""
        members, complete = self._job.members, self._rules.policy.complete
        first = complete is Complete.RANK_0 and members.ranks[0].state is RankState.LEFT
        if self._job.over is None and (first or (complete is Complete.ANY and members.counts[RankState.LEFT])):
            who = rank_words(members.in_state(RankState.LEFT))
            over = notices.started_over(self._job.starts_over)
            text = (
                f"{who} ended in good order{over}, and completePolicy of {self._rules.policy.name} is {complete.value}"
            )
            self.finish(0, text, when.now)
        return self._job.over is not None

    def check_grace(self, when: Moment) -> None:
        """End the job if the grace period of an external launcher is over."""
        if self._attendance.gone_for_good(when.at) and self._case.only_watched:
            lost = placement.losses(self._job.members)
            self.finish(exit_code_of(lost), f"{describe(lost)}, and {NOBODY_BACK}", when.now)

    def finish(self, exit_code: int, reason: str, now: int, kind: StopKind = StopKind.OVER) -> None:
        """End the job with this exit code, and close its open incident."""
        self._attendance.gone_at = None
        incident = self._case.incident
        if incident is not None:
            good = exit_code == 0 or incident.strategy is Strategy.OBSERVE
            ending = (IncidentCause.BACK, Outcome.OBSERVED) if good else (IncidentCause.EXIT, Outcome.EXITED)
            self._case.close(*ending, reason, now)
        if text := notices.ended(self._job.starts_over):
            self._job.note("end", text)
        self._job.finish(exit_code, reason, kind)
        self._job.effects.append(EndJob(exit_code, cut(reason), kind))
