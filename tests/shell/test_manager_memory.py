"""What the manager remembers through its own death. Its journal stays equally long, however many repairs there were.
All that the manager knows, tells and counts is still there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskd import config
from taskd.bench.nodes import JOB, Nodes
from taskd.core.effects import ManagerEffect
from taskd.core.events import ManagerEvent, Said
from taskd.core.manager import Manager
from taskd.core.messages import Evidence, Report
from taskd.core.types import EvidenceKind
from taskd.manager import memory as module
from taskd.manager.journal import Journal
from taskd.manager.memory import Memory

RANKS, PER_NODE, ROWS = 8, 2, 60


@pytest.fixture
def begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Memory]]:
    monkeypatch.setattr(module, "SNAPSHOT_ROWS", ROWS)
    made: list[Memory] = []

    def one() -> Memory:
        settings = config.load(
            job_id=JOB,
            job_run_dir=str(tmp_path),
            job_node_nums=RANKS // PER_NODE,
            job_proc_per_node=PER_NODE,
            recover_process_recover=True,
            recover_max_restarts=1_000,
        )
        Path(settings.job.directory).mkdir(parents=True, exist_ok=True)
        made.append(Memory(settings))
        made[-1].begin()
        return made[-1]

    yield one
    for memory in made:
        memory.close("")


def journal_of(memory: Memory) -> Journal:
    assert memory.journal is not None
    return memory.journal


class Job(Nodes):
    """A job whose manager writes after every step. Another manager may take over between two steps."""

    def __init__(self, memory: Memory) -> None:
        super().__init__(RANKS // PER_NODE, PER_NODE, self.step)
        self.memory = memory
        self.most_rows = 0

    def step(self, event: ManagerEvent) -> list[ManagerEffect]:
        effects = self.memory.step(event)
        self.memory.commit()
        self.most_rows = max(self.most_rows, len(list(journal_of(self.memory).rows())))
        return effects


def test_a_journal_is_as_long_after_many_repairs_as_after_one(begin: Callable[[], Memory]) -> None:
    job = Job(begin())
    job.begin()
    for repair in range(10):
        job.repair(repair % RANKS)
    assert job.most_rows < ROWS and journal_of(job.memory)._number > 5 * ROWS
    assert [one["outcome"] for one in job.memory.core.incidents(job.memory.now_ns())] == ["healed"] * 10


def test_a_large_job_is_put_together_as_seldom_as_it_has_ranks(
    begin: Callable[[], Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SNAPSHOT_ROWS", 2)
    job = Job(begin())
    job.begin()
    job.repair(0)
    assert RANKS // 2 < job.most_rows < RANKS


def test_the_next_manager_knows_all(begin: Callable[[], Memory]) -> None:
    job = Job(begin())
    job.begin()
    for repair in range(7):
        job.repair(repair)
    job.kill(7)  # the manager dies in the middle of this repair
    before = job.memory
    journal_of(before).close()
    after = begin()
    assert journal_of(after).snapshot() is not None and after.taken_up
    assert after.term == before.term + 1 and after.core.epoch == before.core.epoch
    told = [(one.number, one.note) for one in after.notes]
    assert told[: len(before.notes)] == [(one.number, one.note) for one in before.notes]
    assert after.last_note == before.last_note + 1  # the one new note: the manager is back
    now_ns = after.now_ns()
    ids = [(one["id"], one["outcome"], one["ranks"]) for one in before.core.incidents(now_ns)]
    assert [(one["id"], one["outcome"], one["ranks"]) for one in after.core.incidents(now_ns)] == ids
    assert ids[-1] == (8, "open", [7])
    rows = [{**row, "beat_age_ms": 0} for row in after.core.facts(now_ns)["ranks"]]
    assert rows == [{**row, "beat_age_ms": 0} for row in before.core.facts(now_ns)["ranks"]]
    job.memory = after
    job.follow()
    assert [one["outcome"] for one in after.core.incidents(after.now_ns())] == ["healed"] * 8


def test_what_breaks_the_core_is_undone_from_the_snapshot(
    begin: Callable[[], Memory], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(begin())
    job.begin()
    for repair in range(6):
        job.repair(repair)
    step = Manager.step

    def breaks(core: Manager, now_ns: int, event: ManagerEvent) -> list[ManagerEffect]:
        if isinstance(event, Said) and isinstance(event.message, Evidence):
            core._members.ranks.clear()
            raise RuntimeError("a mistake")
        return step(core, now_ns, event)

    monkeypatch.setattr(Manager, "step", breaks)
    job.say("n00000", Evidence(EvidenceKind.COLLECTIVE_ERROR, -1, 1, 0, 0, "x"))
    core = job.memory.core
    assert len(core.incidents(job.memory.now_ns())) == 6 and core.world_size == RANKS
    for name, node in job.nodes.items():  # a manager that is back decides only when it has heard all nodes
        job.say(name, Report(True, job.memory.term, tuple(node.ranks.values())))
    job.repair(6)
    assert [one["outcome"] for one in core.incidents(job.memory.now_ns())] == ["healed"] * 7


def test_a_snapshot_of_another_version_costs_a_warning(begin: Callable[[], Memory], tmp_path: Path) -> None:
    job = Job(begin())
    job.begin()
    for repair in range(4):
        job.repair(repair)
    journal_of(job.memory).close()
    term = job.memory.term
    database = sqlite3.connect(tmp_path / JOB / "journal.db", isolation_level=None)
    database.execute("UPDATE snapshot SET state = ?", (b"\x92\x93\x90\x90\x00\x90",))
    database.close()
    after = begin()
    assert not after.taken_up and not after.trouble and after.term == term + 1
    assert (tmp_path / JOB / "journal.db.damaged-1").exists() and not after.notes
