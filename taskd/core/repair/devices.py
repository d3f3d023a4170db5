"""The events of devices that nodes report: told to people once, and written down as incidents.

A device that ends a process is told together with the death of that process: the node's agent puts it into the reason
(core/device_relay.py). What can go wrong, and what follows:

- *The report is repeated*: it is news only once. If the device reports the same again, this is told once a minute.
- *The event comes after the death that it explains*: it becomes a note of the open incident of its rank.
- *An agent is started again*: it tells anew what it finds. What its predecessor has told is forgotten.
- *A node invents events without end*: the number of those that are remembered is bounded.

An event does not end a rank: a rank that can go on goes on. Not here: what an event means (taskd/devices).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.messages import DeviceEvent, DeviceReport
from taskd.core.repair.case import Case
from taskd.core.repair.incident import Incident, IncidentCause
from taskd.core.times import Moment, long_ago
from taskd.core.types import DeviceKind, Harm, Outcome
from taskd.core.words import cut, device_words, milliseconds, rank_words, verb

_HARM = {
    Harm.WARNING: "",
    Harm.PROCESS: "; a process that uses it fails",
    Harm.DEVICE: "; it has to be reset or replaced",
}


@dataclass(slots=True)
class Noted:
    """What people were told last of one event."""

    times: int
    at: int


class Devices:
    """The events of all nodes' devices."""

    def __init__(self, job: Job, case: Case) -> None:
        self._job = job
        self._case = case
        self._noted: dict[str, dict[tuple[int, int, int], Noted]] = {}  # by node
        self._last: dict[str, tuple[int, DeviceReport]] = {}  # by node: its last report, and when that was filed
        self.history: deque[Incident] = deque(maxlen=limits.MAX_KEPT_INCIDENTS)

    def file(self, node: str, report: DeviceReport, when: Moment) -> None:
        """Take a node's report."""
        if self._job.over is not None:
            return
        self._last[node] = when.at, report
        for place, event in enumerate(report.events):
            if (told := self._news(node, event, when.at)) is not None:
                self._job.mattered = True
                ranks = [rank for rank in report.ranks_of(place) if self._job.members.find(rank) is not None]
                self._tell(node, event, ranks, told, when.now)

    def forget(self, node: str) -> None:
        """Another agent speaks for this node."""
        self._noted.pop(node, None)
        self._last.pop(node, None)
        self._job.members.lost_devices.forget(node)

    def facts(self, at: int) -> list[dict[str, Any]]:
        """Return what the devices have reported, ready for JSON: the newest event of all nodes first."""
        rows = [
            self._row(node, event, report.ranks_of(place), at - filed_at)
            for node, (filed_at, report) in self._last.items()
            for place, event in enumerate(report.events)
        ]
        return sorted(rows, key=lambda row: (row["age_ms"], row["node"], row["device"]))[: limits.MAX_DEVICE_EVENTS]

    @staticmethod
    def _row(node: str, event: DeviceEvent, ranks: tuple[int, ...], since_ns: int) -> dict[str, Any]:
        return {
            "node": node,
            "device": event.device,
            "uuid": event.uuid,
            "kind": event.kind.name.lower(),
            "code": event.code,
            "text": event.text,
            "harm": event.harm.name.lower(),
            "ranks": list(ranks),
            "times": event.times,
            "age_ms": event.age_ms + milliseconds(max(since_ns, 0)),
        }

    def _news(self, node: str, event: DeviceEvent, at: int) -> int | None:
        """Return how often it was told before (0: never). None: it is no news."""
        key = (event.device, event.kind, event.code)
        noted = self._noted.setdefault(node, {})
        known = noted.get(key)
        if known is not None:
            if event.times <= known.times or not long_ago(known.at, at, limits.DEVICE_AGAIN_NS):
                return None
        elif len(noted) >= limits.MAX_DEVICE_EVENTS:  # as many as a node remembers itself
            del noted[next(iter(noted))]
        noted[key] = Noted(event.times, at)
        return 0 if known is None else known.times

    def _tell(self, node: str, event: DeviceEvent, ranks: list[int], told: int, now: int) -> None:
        """`ranks`: those that use the device. `told`: how often it was told before."""
        if event.kind is DeviceKind.LOST and event.device >= 0:
            self._job.members.lost_devices.add(node, event.device, ranks)
        of_ranks = f", which {rank_words(ranks)} {verb(len(ranks), 'uses', 'use')}," if ranks else ""
        again = f" {event.times} times by now" if told else ""
        harm = "; the device is lost" if event.kind is DeviceKind.LOST else _HARM[event.harm]
        text = f"{device_words(event.device)} of node {node}{of_ranks} reported {event.text}{again}{harm}"
        # What ends a process of nobody here is another job's affair.
        aloud = event.harm is Harm.DEVICE or (event.harm is Harm.PROCESS and bool(ranks))
        number = self._write_down(node, ranks, cut(text), now) if aloud and not told else 0
        self._job.note("device" if aloud else "health", text, ranks[0] if ranks else -1, node, incident=number)

    def _write_down(self, node: str, ranks: list[int], text: str, now: int) -> int:
        """Add the event to the open incident of its ranks, or make it an incident that is closed at once."""
        open_one = self._case.incident
        if open_one is not None and open_one.ranks.intersection(ranks):
            open_one.note(text)
            return open_one.id
        incident = Incident(self._job.next_incident(), "device", now)
        incident.concern(text, ranks, [node])
        incident.reason = cut(f"{text}; a rank is replaced once it has failed: observe")
        incident.move(IncidentCause.OBSERVE)
        incident.close(IncidentCause.BACK, Outcome.OBSERVED, now)
        self.history.append(incident)
        return incident.id
