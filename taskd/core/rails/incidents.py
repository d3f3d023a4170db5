"""The incidents of rails: at most one for each rail name, open exactly as long as a rail of this name is lost or lent.

They show people what a lost rail has cost. Failure modes, and what follows:

- *A lost rail is never seen again*: its lines are forgotten, and its incident says so when it closes.
- *More rails are lost than the list has room for*: the events of the other rails are noted without an incident.

It decides nothing about rails (rails).
"""

from __future__ import annotations

from collections import deque

from taskd.core import limits
from taskd.core.events import RailVerdict
from taskd.core.job import Job
from taskd.core.rails.records import Trouble, Use
from taskd.core.rails.standing import Standing
from taskd.core.repair.incident import Incident, IncidentCause
from taskd.core.types import Outcome, Strategy
from taskd.core.words import cut, join, milliseconds


class RailIncidents:
    """The open incidents by rail name, and the closed ones."""

    def __init__(self, job: Job, standing: Standing) -> None:
        self._job = job
        self._standing = standing
        self.open: dict[str, Trouble] = {}
        self.history: deque[Incident] = deque(maxlen=limits.MAX_KEPT_INCIDENTS - 1)

    def all(self) -> list[Incident]:
        """All incidents, the closed ones first."""
        return [*self.history, *(trouble.incident for trouble in self.open.values())]

    def concern(self, name: str, nodes: tuple[str, ...], text: str, now: int) -> None:
        """Open the incident of this rail, or let it grow."""
        trouble = self.open.get(name)
        if trouble is None and len(self.open) < limits.MAX_OPEN_INCIDENTS - 1:
            incident = Incident(self._job.next_incident(), "rail", now, strategy=Strategy.BORROW, reason=cut(text))
            incident.move(IncidentCause.REPAIR)
            trouble = self.open[name] = Trouble(incident)
        if trouble is not None:
            trouble.incident.concern(cut(text), (), nodes)

    def note(self, name: str, text: str, node: str = "") -> None:
        """Write down what happened to a rail, as part of its incident if one is open."""
        trouble = self.open.get(name)
        self._job.note("rail", text, node=node, incident=0 if trouble is None else trouble.incident.id)

    def pay(self, verdict: RailVerdict) -> None:
        """Add to the cost what other rails have carried meanwhile."""
        trouble = self.open.get(verdict.rail)
        if trouble is not None:
            trouble.borrowed += verdict.borrowed
            trouble.hedged += verdict.hedged
            trouble.retransmitted += verdict.retransmitted

    def phase(self, name: str, begins: str, ends: str, now: int) -> None:
        """One phase ends, and another one begins. Empty: none."""
        trouble = self.open.get(name)
        if trouble is not None and ends:
            trouble.incident.end(ends, now)
        if trouble is not None and begins:
            trouble.incident.begin(begins, now)

    def will_end(self, name: str, words: str) -> None:
        """Set the words with which the incident will end, as things stand now."""
        if name in self.open:
            self.open[name].end = words

    def close(self, name: str, now: int) -> None:
        """Close the incident of a rail if it is neither lost nor lent on any node."""
        if name not in self.open:
            return
        known = self._standing.named(name)
        if any(rail.use in (Use.LENT, Use.RETURNING) or rail.is_lost for rail in known):
            return
        resting = [rail.node for rail in known if rail.use is Use.OUT]
        end = f"it stays out of use on {join(resting)}, by an operator" if resting else self.open[name].end
        self._end(name, IncidentCause.HEALED, Outcome.HEALED, end, now)

    def finish(self, now: int) -> None:
        """The job is over: close the open incidents, and leave the rails as they are."""
        for name in list(self.open):
            self._end(name, IncidentCause.BACK, Outcome.OBSERVED, "the job is over", now)

    def _end(self, name: str, cause: IncidentCause, outcome: Outcome, why: str, now: int) -> None:
        trouble = self.open.pop(name)
        incident = trouble.incident
        incident.close(cause, outcome, now)
        incident.cost = {
            "borrowed_bytes": trouble.borrowed,
            "hedged_frames": trouble.hedged,
            "retransmitted_frames": trouble.retransmitted,
        }
        took = milliseconds(now - incident.opened_at)
        text = f"incident {incident.id} is {outcome.value} after {took} ms: {why}; others sent {trouble.borrowed} bytes"
        incident.note(text)
        self._job.note("closed", text, incident=incident.id)
        self.history.append(incident)
