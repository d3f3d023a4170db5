"""What the control plane costs at sizes that no test machine has: meetings, lost rails, orders, journal, questions.

The manager is one thread, so the busy time of that thread counts. Its real code runs here in one process: the core, the
journal on a disk, the store and the messages as bytes. The nodes obey at once (nodes.py), and the members meet
(meeting.py). Sockets, encryption and the ranks' own work are not included.

A figure with `_s` or `_ms` is the manager's time. `rail_loss` is the longest time for a single report or tick.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from taskd import config
from taskd.bench import parts
from taskd.bench.meeting import Meeting
from taskd.bench.nodes import JOB, Nodes
from taskd.bench.report import Figure, Goal, median
from taskd.core import waits
from taskd.core.effects import ManagerEffect, Tell
from taskd.core.events import ManagerEvent, Tick
from taskd.core.limits import MS, SECOND, STILL_JUDGE_NS
from taskd.core.manager import Manager
from taskd.core.messages import Place, RailReport
from taskd.core.types import RailState, Strategy
from taskd.core.words import span_words
from taskd.manager import answers, record
from taskd.manager.memory import Memory
from taskd.manager.outbox import Outbox
from taskd.manager.roster import Roster
from taskd.manager.store_desk import StoreDesk

PER_NODE = 8
MEETINGS = {1024: Goal("<=", 0.3), 4096: Goal("<=", 1.5)}
MEETING_TURNS = 3
RAIL_NODES = 64
RAILS = ("red", "blue")
RAIL_S = 5
ORDER_RANKS = 100_000
JOURNAL_RANKS = 10_000
REPAIRS = 6
"""The longest journal in the first half of the repairs is compared with the longest one in the second half."""
LEAVING_NODES = 5_000
COMMIT_EVERY = 100
"""The number of steps that are written at once, as in a turn of the manager's loop in which many messages wait."""
_UP = RailReport("red", "b", RailState.UP, 1_000, 1, 1, 1, 0, 0, 50_000, 0, 0, 0, 0, 0, 0)
Figures = dict[str, Figure]


def measure(only: Sequence[str] = (), seconds: float | None = None) -> Figures:
    """The figures of these parts, or of all if none is named. Nothing here waits, so `seconds` has no effect."""
    return parts.measure(PARTS, only, 0.0)


class _Core:
    """A manager's core in virtual time, without a journal."""

    def __init__(self, ranks: int, nodes: int, *strategies: Strategy) -> None:
        self.core = Manager(JOB, ranks, nodes, frozenset(strategies), bool(strategies), 1_000)
        self.now = SECOND
        self.longest_s = 0.0

    def take(self, event: ManagerEvent) -> list[ManagerEffect]:
        began = time.perf_counter()
        effects = self.core.step(self.now, event)
        self.longest_s = max(self.longest_s, time.perf_counter() - began)
        return effects


def _meetings() -> Figures:
    """The manager's time until every rank knows where all ranks are, from an empty store."""
    found: Figures = {}
    for size, goal in MEETINGS.items():
        runs = []
        for _ in range(MEETING_TURNS):
            with tempfile.TemporaryDirectory(prefix="taskd-bench-") as directory:
                desk = StoreDesk(directory)
                desk.begin(fresh=True, epoch=2)
                meeting = Meeting(desk, "epoch2/group", size)
                meeting.hold()
                desk.close()
            runs.append(meeting.busy_s)
        found[f"meeting_{size}_s"] = median(runs, "s", goal)
    return found


def _rails() -> Figures:
    """The longest time of a report or tick after one rail is lost between all nodes at once."""
    manager = _Core(RAIL_NODES, RAIL_NODES)
    job = Nodes(RAIL_NODES, 1, manager.take)
    job.begin()
    for down in (False, True):
        manager.longest_s = 0.0
        for beat in range(10 * RAIL_S):
            manager.now += 100 * MS
            for name in job.nodes:
                job.rails(name, _lines(job, name, down, beat << 20))
            manager.take(Tick())
    return {"rail_loss_64_nodes_ms": Figure(manager.longest_s * 1e3, "ms", Goal("<=", 50))}


def _lines(job: Nodes, name: str, down: bool, moved: int) -> tuple[RailReport, ...]:
    well = replace(_UP, bytes_out=moved, bytes_in=moved)
    lost = replace(well, state=RailState.DOWN, pairs_up=0, pairs_moved=0, downs=1)
    return tuple(
        replace(lost if down and rail == RAILS[0] else well, rail=rail, peer=peer)
        for peer in job.nodes
        if peer != name
        for rail in RAILS
    )


def _orders() -> Figures:
    """The time from the report of a death, after which all ranks start over, until all orders and the journal row are
    bytes."""
    manager = _Core(ORDER_RANKS, ORDER_RANKS // PER_NODE, Strategy.RESPAWN)
    job = Nodes(ORDER_RANKS // PER_NODE, PER_NODE, manager.take)
    job.begin()
    outbox = Outbox(JOB, 1)
    began = time.perf_counter()
    effects = job.kill(0)
    record.effects_row(effects)
    for effect in effects:
        if isinstance(effect, Tell):
            outbox.post(b"", effect.message, effect.node)
    took_s = time.perf_counter() - began
    told = [len(data) for _, data in outbox.take()]
    assert len(told) == len(job.nodes), f"{len(told)} nodes of {len(job.nodes)} were told"
    return {"order_100k_s": Figure(took_s, "s", Goal("<=", 2)), "order_100k_mb": Figure(sum(told) / 1e6, "MB")}


def _journal() -> Figures:
    """By how many rows the longest journal grows per repair, and how many rows it has."""
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as directory:
        settings = config.load(
            job_id=JOB,
            job_run_dir=directory,
            job_node_nums=JOURNAL_RANKS // PER_NODE,
            job_proc_per_node=PER_NODE,
            recover_process_recover=True,
            recover_max_restarts=1_000,
        )
        Path(settings.job.directory).mkdir(parents=True)
        memory = Memory(settings)
        memory.begin()
        assert memory.journal is not None
        journal, steps = memory.journal, 0
        most = [0, 0]  # the largest number of rows in each half of the repairs

        def take(event: ManagerEvent) -> list[ManagerEffect]:
            nonlocal steps
            steps += 1
            effects = memory.step(event)
            most[-1] = max(most[-1], journal.fresh_rows)
            if steps % COMMIT_EVERY == 0:
                memory.commit()
            return effects

        job = Nodes(JOURNAL_RANKS // PER_NODE, PER_NODE, take)
        job.begin()
        for repair in range(REPAIRS):
            if repair == REPAIRS // 2:
                most = [most[-1], journal.fresh_rows]
            job.repair(repair)
        closed = [one["outcome"] for one in memory.core.incidents(memory.now_ns())]
        assert closed == ["healed"] * REPAIRS and not memory.trouble, (closed, memory.trouble)
        memory.close("")
    grown = (most[1] - most[0]) / (REPAIRS - REPAIRS // 2)
    goal = Goal("<=", COMMIT_EVERY)  # constant, except for the rows that one turn may write at once
    return {"journal_rows_per_repair": Figure(grown, "rows", goal), "journal_rows": Figure(max(most), "rows")}


def _status() -> Figures:
    """The time for one answer to `taskd status`."""
    manager = _Core(ORDER_RANKS, ORDER_RANKS // PER_NODE, Strategy.RESPAWN)
    Nodes(ORDER_RANKS // PER_NODE, PER_NODE, manager.take).begin()
    began = time.perf_counter()
    answers.status(lambda first: manager.core.facts(manager.now, first), "", {})
    return {"status_100k_ms": Figure((time.perf_counter() - began) * 1e3, "ms", Goal("<=", 100))}


def _goodbyes() -> Figures:
    """The time until all agents of a job have left, one after the other."""
    manager = _Core(LEAVING_NODES, LEAVING_NODES, Strategy.IN_PLACE)
    job = Nodes(LEAVING_NODES, 1, manager.take)
    job.begin()
    roster = Roster()
    for connection, name in enumerate(job.nodes):
        roster.spoke(name, 1, b"", connection)
    began = time.perf_counter()
    job.leave()
    for connection in range(LEAVING_NODES):
        roster.lost(connection)
    return {"goodbyes_5000_s": Figure(time.perf_counter() - began, "s", Goal("<=", 1))}


def _standstill() -> Figures:
    """The time for one look at a job that stands still: all ranks but one wait in the same operation."""
    group = waits.digest(f"0@{span_words((0, JOURNAL_RANKS - 1))}")
    places = {rank: [Place(rank, group, 1, 5, 4)] for rank in range(JOURNAL_RANKS)}
    places[7] = [Place(7, group, 1, 4, 4)]
    began = time.perf_counter()
    found = waits.find(places, JOURNAL_RANKS)
    alone = waits.all_wait_for(7, places, JOURNAL_RANKS)
    took_ms = (time.perf_counter() - began) * 1e3
    assert found.awaited == (7,) and alone
    return {"standstill_10k_ms": Figure(took_ms, "ms", Goal("<=", JOURNAL_RANKS * STILL_JUDGE_NS / MS / 4))}


PARTS: dict[str, Callable[..., Figures]] = {
    "meetings": _meetings,
    "rails": _rails,
    "orders": _orders,
    "journal": _journal,
    "status": _status,
    "goodbyes": _goodbyes,
    "standstill": _standstill,
}
