"""The open case: one incident, the attempt at its repair, and the decision that it waits for.

The three begin and end together. Every event of a job may concern all of them. Failure modes, and what follows:

- *Another fault during a repair*: the open incident grows. There is never a second one.
- *An incident closes in the middle of an attempt*: the attempt ends too, and no rank is waited for any more.

Invariant: at most one incident is open. It does NOT say what is decided (decider), what a fault means (faults), or how
an attempt goes on (course).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.policy.ruling import History
from taskd.core.repair import notices
from taskd.core.repair.attempts import Attempts
from taskd.core.repair.decision import DecisionCause, NextDecision
from taskd.core.repair.incident import Incident, IncidentCause, IncidentState
from taskd.core.repair.stages import AttemptState
from taskd.core.times import earliest
from taskd.core.types import Outcome


class Case:
    """The open incident with its attempt and decision, and the closed incidents."""

    def __init__(self, job: Job, spare_wait_ns: int, history: History) -> None:
        self._job = job
        self.restarts = history
        self.incident: Incident | None = None
        self.history: deque[Incident] = deque(maxlen=limits.MAX_KEPT_INCIDENTS - 1)
        self.attempts = Attempts(job, spare_wait_ns)
        self.decision = NextDecision()
        self._stood_ns = 0  # how long ranks had stood for operators when the open incident was opened

    def open(self, kind: str, ranks: Iterable[int], text: str, age_ns: int, now: int) -> Incident:
        """Open an incident, or let the open one grow."""
        incident = self.incident
        if incident is None:
            incident = self.incident = Incident(self._job.next_incident(), kind, now)
            self._job.incident = incident.id
            self._stood_ns = self._job.members.stood_ns(now)
            incident.detected(age_ns, now)
        else:
            incident.move(IncidentCause.GROWN)
        incident.trouble = text
        incident.concern(text, ranks, [self._job.members.ranks[rank].where for rank in ranks])
        self._job.note(kind, text)
        return incident

    def close(self, cause: IncidentCause, outcome: Outcome, text: str, now: int) -> None:
        """Close the incident, with its attempt and its decision."""
        incident = self.incident
        assert incident is not None
        incident.close(cause, outcome, now)
        incident.note(text)
        self._job.note("closed", notices.closed(incident, text))
        self.history.append(incident)
        self.incident = None
        self.attempts.close()
        self._job.settle()
        self.decision.settle(DecisionCause.CLOSED)

    def deadline(self) -> int | None:
        """When the decision or the attempt's stage is due, in waking time."""
        attempt = self.attempts.attempt
        settles_at = None if self.incident is None else self.incident.settles_at
        stage_ends_at = None if attempt is None or self.decision.pending else attempt.waiting.deadline
        return earliest(self.decision.due_at, settles_at, stage_ends_at)

    def restart(self, at: int) -> None:
        """The manager was away: its clocks start again."""
        self.decision.restart(at)
        if self.incident is not None:
            self.incident.restart_clocks(at)
        if self.attempts.attempt is not None:
            self.attempts.attempt.waiting.restart(at)
            if self.attempts.placing and self.attempts.held:
                self.attempts.attempt.waiting.deadline = at  # how long the policy wants to wait is asked again

    def repair_ns(self, now: int) -> int:
        """How long the repair of the open incident has taken, without the time in which ranks stood for an operator or
        wrote the last checkpoint. 0: it has not begun."""
        incident = self.incident
        if incident is None or not incident.attempts:
            return 0
        stood_ns = self._job.members.stood_ns(now) - self._stood_ns
        return now - incident.opened_at - stood_ns - incident.checkpoint.spent_ns(now)

    @property
    def deciding(self) -> bool:
        """Whether a fault waits for its decision, so that the order in force may soon be replaced."""
        return self.decision.pending or (self.incident is not None and self.incident.settles_at is not None)

    @property
    def busy(self) -> bool:
        """Whether a fault waits for its decision, or a repair brings ranks to one state."""
        attempt = self.attempts.attempt
        return self.deciding or (attempt is not None and attempt.state is not AttemptState.REDO)

    @property
    def behind(self) -> set[int]:
        """Ranks that have not followed the order in force yet."""
        attempt = self.attempts.attempt
        if attempt is None:
            return self._job.behind
        return set() if attempt.state is AttemptState.REDO else attempt.waiting.ranks

    @property
    def only_watched(self) -> bool:
        """Whether no repair here will start a rank again. At most an external launcher will."""
        return self.incident is None or self.incident.state is IncidentState.OBSERVING
