"""What devices report: whose device it is, whose death it explains, and what a manager makes of it.

The stories tests/scripts/stories/device_*.txt show whole jobs.
"""

from __future__ import annotations

from typing import Any

import pytest

from taskd.core import limits
from taskd.core.agent import Agent
from taskd.core.effects import AgentEffect, Note, Send
from taskd.core.events import Connected, DeviceSeen, Disconnected, Gone, Reading, Readings, Started, Tick, WorkerSaid
from taskd.core.limits import MS, SECOND
from taskd.core.manager import Manager
from taskd.core.messages import DeviceEvent, DeviceReport, DeviceUser, Evidence, Report, WorkerHello
from taskd.core.post import Identity
from taskd.core.types import DeviceKind, EvidenceKind, Harm, Phase, Stage
from tests.core.builders import Node, manager, rank_report

LOST = DeviceSeen(1, "GPU-abc-1", DeviceKind.LOST, 79, "XID 79 (GPU has fallen off the bus)", Harm.DEVICE, (51,))
FAULT = DeviceSeen(1, "GPU-abc-1", DeviceKind.XID, 31, "XID 31 (GPU memory page fault)", Harm.PROCESS, (51,))
DAMAGE = DeviceSeen(1, "GPU-abc-1", DeviceKind.XID, 95, "XID 95 (uncontained memory error)", Harm.DEVICE, (51,))
WORN = DeviceSeen(1, "GPU-abc-1", DeviceKind.ECC_CORRECTED, 0, "3 corrected memory errors", Harm.WARNING, (51,))


def agent(*devices: str) -> Agent:
    """Return a launcher's agent with one rank for each of these devices: rank r is process 50 + r."""
    core = Agent(Identity("job", "a", "host", 1, True, max(len(devices), 1), 100 * MS))
    core.step(0, Connected())
    for rank, device in enumerate(devices):
        start(core, rank, 1, 50 + rank, device)
    return core


def start(core: Agent, rank: int, incarnation: int, pid: int, device: str, now: int = 0) -> None:
    core.step(now, Started(rank, incarnation, pid))
    named = ("pt", 0, Stage.RUNNING, b"")
    core.step(now, WorkerSaid(WorkerHello("job", rank, 4, rank, pid, incarnation, *named, device=device)))


def told(effects: list[AgentEffect]) -> list[DeviceReport]:
    return [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, DeviceReport)]


def reason(core: Agent, now: int, rank: int = 1, incarnation: int = 1, code: int = -6, words: str = "") -> str:
    effects = core.step(now, Gone(rank, incarnation, code, words))
    messages = [one.message for one in effects if isinstance(one, Send) and isinstance(one.message, Report)]
    return next(row.reason for message in messages for row in message.ranks if row.rank == rank)


def ranks_of(core: Agent, event: DeviceSeen) -> tuple[int, ...]:
    (report,) = told(core.step(SECOND, event))
    return report.ranks_of(len(report.events) - 1)


def changed(event: DeviceSeen, **changes: Any) -> DeviceSeen:
    return DeviceSeen(**{**{name: getattr(event, name) for name in DeviceSeen.__slots__}, **changes})


def test_whose_device_it_is() -> None:
    core = agent("0", "1", "GPU-abc-1", "")
    assert ranks_of(core, LOST) == (1,), "the driver names the process"
    everybody = (50, 51, 52, 53)
    assert ranks_of(core, changed(FAULT, pids=(), holders=everybody)) == (1, 2), "by number, and by id"
    strange = changed(DAMAGE, pids=(9_999,), holders=(50, 52, 53))
    assert ranks_of(core, strange) == (), "the driver knows our processes, and names another one"
    core = agent("0", "1", "GPU-abc-1", "")
    assert ranks_of(core, strange) == (2,), "the driver knows us under other numbers; rank 1 has no device open"
    assert ranks_of(core, changed(WORN, pids=(9_999,), holders=())) == (), "a job on the CPUs of that node"
    assert ranks_of(core, changed(WORN, code=1, device=7, uuid="", pids=(), holders=everybody)) == ()


def test_a_lost_device_explains_all_deaths_at_it() -> None:
    core = agent("0", "1")
    core.step(SECOND, LOST)
    words = "device 1 reported XID 79 (GPU has fallen off the bus)"
    assert reason(core, SECOND + 400 * MS) == f"{words} 0.4 s before"
    start(core, 1, 2, 61, "1", now=100 * SECOND)
    assert reason(core, 7_000 * SECOND, incarnation=2) == f"{words} 6999 s before"
    assert reason(core, 7_000 * SECOND, rank=0) == ""


@pytest.mark.parametrize(
    ("event", "after_s", "explains"),
    [(FAULT, 59, True), (FAULT, 61, False), (DAMAGE, 1_799, True), (DAMAGE, 1_801, False), (WORN, 0, False)],
)
def test_for_how_long_an_event_explains_a_death(event: DeviceSeen, after_s: int, explains: bool) -> None:
    core = agent("0", "1")
    core.step(SECOND, event)
    assert bool(reason(core, (1 + after_s) * SECOND)) is explains


def test_an_error_of_a_process_explains_no_death_of_its_successor() -> None:
    for event, explains in ((FAULT, False), (DAMAGE, True)):
        core = agent("0", "1")
        core.step(SECOND, event)
        reason(core, SECOND)
        start(core, 1, 2, 61, "1", now=2 * SECOND)
        assert bool(reason(core, 3 * SECOND, incarnation=2)) is explains


def test_the_device_comes_before_what_follows_from_it() -> None:
    """Otherwise the rank would count as one that died only because another one had."""
    core = agent("0", "1")
    core.step(SECOND, WORN)
    core.step(SECOND, FAULT)
    core.step(SECOND, DAMAGE)
    said = Evidence(EvidenceKind.EXCEPTION, 1, 1, 1, 1, "rank 1 raised DistBackendError: NCCL error")
    core.step(2 * SECOND, WorkerSaid(said))
    words = "device 1 reported XID 95 (uncontained memory error) 2.0 s before; DistBackendError: NCCL error"
    assert reason(core, 3 * SECOND, code=1) == words
    assert core.crew.causes() == [1]


def test_a_death_that_has_its_reason_keeps_it_first() -> None:
    core = agent("0", "1")
    core.step(SECOND, FAULT)
    core.step(SECOND, Readings((Reading(1, 1, 0, 9, Phase.BODY, 3, 100),)))
    words = (
        "left with exit code 0 in the middle of step 9; device 1 reported XID 31 (GPU memory page fault) 0.5 s before"
    )
    assert reason(core, SECOND + 500 * MS, code=0) == words


def test_events_are_repeated_and_bounded() -> None:
    core = agent("0", "1")
    assert told(core.step(SECOND, FAULT))[0].events[0].times == 1
    assert told(core.step(2 * SECOND, Tick())) == []
    (again,) = told(core.step(SECOND + limits.DEVICE_REPEAT_NS, Tick()))
    assert again.events[0].age_ms == limits.DEVICE_REPEAT_NS // MS
    assert told(core.step(8 * SECOND, changed(FAULT, pids=()))) == [], "it is no new event"
    (again,) = told(core.step(SECOND + 2 * limits.DEVICE_REPEAT_NS, Tick()))
    assert again.events[0].times == 2
    assert again.ranks_of(0) == (1,)
    core.step(12 * SECOND, Disconnected())
    for code in range(500):
        assert told(core.step(12 * SECOND, changed(WORN, code=code))) == []
    (report,) = told(core.step(13 * SECOND, Connected()))
    assert [event.code for event in report.events] == list(range(436, 500))


# ---- the manager --------------------------------------------------------------------------------------------------


def event(**changes: Any) -> DeviceEvent:
    values: dict[str, Any] = {
        "device": 1, "uuid": "GPU-1", "kind": DeviceKind.LOST, "code": 79, "text": "XID 79", "harm": Harm.DEVICE,
        "times": 1, "age_ms": 0, **changes,
    }  # fmt: skip
    return DeviceEvent(**values)


def started() -> tuple[Manager, Node, Node]:
    core, a, b = manager(), Node("a"), Node("b")
    for node, ranks in ((a, (0, 1)), (b, (2, 3))):
        core.step(SECOND, node.hello(world_size=4))
        core.step(SECOND, node.report(*(rank_report(rank) for rank in ranks), full=True))
    return core, a, b


def notes(core: Manager, node: Node, now: int, *found: DeviceEvent, rank: int = 1) -> list[Note]:
    """Let a node report these events of a rank's device. Return what people are told."""
    report = DeviceReport(found, tuple(DeviceUser(place, rank) for place in range(len(found))))
    found_notes = [one for one in core.step(now, node.says(report)) if isinstance(one, Note)]
    return [one for one in found_notes if one.kind in ("device", "health")]


def pass_time(core: Manager, since: int, until: int, *nodes: Node) -> None:
    """Let the manager hear its nodes all the time, or it would think that it has slept."""
    for now in range(since, until, 300 * MS):
        for node in nodes:
            core.step(now, node.report())


def test_an_event_is_told_once_and_journaled() -> None:
    core, a, b = started()
    pass_time(core, SECOND, 2 * SECOND, a, b)
    (note,) = notes(core, a, 2 * SECOND, event())
    assert (note.kind, note.rank, note.node, note.incident) == ("device", 1, "a", 1)
    assert note.text == "device 1 of node a, which rank 1 uses, reported XID 79; the device is lost"
    assert len(core.to_journal()) == 1
    assert notes(core, a, 2 * SECOND, event(age_ms=1_000)) == [] and core.to_journal() == ()
    assert notes(core, a, 2 * SECOND, event(times=5)) == [], "not within a minute"
    pass_time(core, 2 * SECOND, 62 * SECOND, a, b)
    (again,) = notes(core, a, 62 * SECOND, event(times=5))
    assert "5 times by now" in again.text and again.incident == 0
    (row,) = core.facts(62 * SECOND + 300 * MS)["devices"]
    assert (row["node"], row["device"], row["harm"], row["age_ms"]) == ("a", 1, "device", 300)
    (incident,) = core.incidents(62 * SECOND)
    assert (incident["kind"], incident["outcome"], incident["ranks"]) == ("device", "observed", [1])
    assert core.facts(62 * SECOND)["incidents"]["known"] == 1


def test_a_warning_is_no_incident_and_strange_ranks_are_nobody() -> None:
    core, a, _ = started()
    (note,) = notes(core, a, 2 * SECOND, event(kind=DeviceKind.THROTTLED, harm=Harm.WARNING, device=-1), rank=77)
    assert (note.kind, note.rank, note.text) == ("health", -1, "a device of node a reported XID 79")
    (note,) = notes(core, a, 2 * SECOND, event(kind=DeviceKind.XID, harm=Harm.PROCESS), rank=77)
    assert note.kind == "health", "a process of another job"
    assert core.incidents(3 * SECOND) == []


def test_events_without_end_are_bounded() -> None:
    core, a, _ = started()
    for first in range(0, 6_000, 60):
        found = (event(code=code, device=code % 9) for code in range(first, first + 60))
        notes(core, a, 2 * SECOND, *found)
    devices = core._repairs.devices
    assert len(devices._noted["a"]) <= limits.MAX_DEVICE_EVENTS
    assert len(devices.history) <= limits.MAX_KEPT_INCIDENTS


def test_another_agent_tells_anew() -> None:
    core, a, _ = started()
    notes(core, a, 2 * SECOND, event())
    assert core._members.lost_devices.at(1, "a") == 1
    newer = Node("a", life=2)
    core.step(3 * SECOND, newer.hello(world_size=4))
    assert core._members.lost_devices.at(1, "a") is None and core.facts(3 * SECOND)["devices"] == []
    assert len(notes(core, newer, 4 * SECOND, event())) == 1
