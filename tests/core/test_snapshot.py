"""Snapshots of a manager: a restored one goes on as the original does, and one of another version is refused.

tests/scripts/harness.py tests this at every row of every story's journal.
"""

from __future__ import annotations

import copy
from typing import Any

import msgpack
import pytest

from taskd.bench.nodes import Nodes
from taskd.core.events import Tick
from taskd.core.job import Job
from taskd.core.limits import MS, SECOND
from taskd.core.manager import Manager
from taskd.core.messages import Proof, Proofs
from taskd.core.rails.records import Rail
from taskd.core.snapshot import TRANSIENT, Unfit, restored, taken
from taskd.core.types import Strategy
from tests.core import rail_job


def through_bytes(core: Manager) -> Manager:
    return restored(msgpack.unpackb(msgpack.packb(taken(core))))


def in_repairs(nodes: int = 2, per_node: int = 2) -> tuple[Manager, Nodes]:
    strategies = frozenset({Strategy.IN_PLACE, Strategy.RESPAWN})
    core = Manager("bench", nodes * per_node, nodes, strategies, True, 1_000)
    job = Nodes(nodes, per_node, lambda event: core.step(SECOND, event))
    job.begin()
    job.repair(1)
    job.kill(2)
    return core, job


def test_it_knows_what_was_known() -> None:
    core, _ = in_repairs()
    again = through_bytes(core)
    assert again is not core and again.facts(2 * SECOND) == core.facts(2 * SECOND)
    assert again.incidents(2 * SECOND) == core.incidents(2 * SECOND)
    assert taken(again) == taken(core) and again.next_deadline() == core.next_deadline()


def test_sets_that_are_equal_are_written_alike() -> None:
    written, orders = [], []
    for ranks in ([0, 8], [8, 0]):  # each would take the other one's place in the set
        core, _ = in_repairs()
        core._members.nodes["n00000"].former_ranks = held = set[int]()
        for rank in ranks:
            held.add(rank)
        orders.append(list(held))
        written.append(taken(core))
    assert orders[0] != orders[1] and written[0] == written[1]


def test_it_goes_on_alike_in_the_middle_of_a_repair() -> None:
    """Every later event has the same effects, though a snapshot is taken and restored before each event."""
    core, job = in_repairs()
    again = through_bytes(core)

    def both(event: Any) -> Any:
        nonlocal again
        again = through_bytes(again)
        effects = core.step(2 * SECOND, event)
        assert again.step(2 * SECOND, event) == effects and again.to_journal() == core.to_journal()
        return effects

    job.take = both
    job.follow()
    assert [one["outcome"] for one in again.incidents(3 * SECOND)] == ["healed", "healed"]
    job.kill(1)
    job.kill(0)  # a second death, during the repair of the first
    both(Tick())
    job.follow()


def test_rails_that_are_lost_are_remembered() -> None:
    job = rail_job.Job()
    job.down("red", "ab", "ba")
    job.run(3 * SECOND)
    again = through_bytes(job.core)
    lost = {key: [*rail.lines] for key, rail in job.core._rails.standing.known.items() if rail.lines}
    assert {key: [*rail.lines] for key, rail in again._rails.standing.known.items() if rail.lines} == lost != {}
    assert again.incidents(job.now) == job.core.incidents(job.now)
    job.core = again
    job.up("red", "ab", "ba")
    job.run(30 * SECOND)
    assert job.well()


def test_what_only_reports_fill_is_left_out() -> None:
    job = rail_job.Job("abcdef")
    before = len(msgpack.packb(taken(job.core)))
    proof = Proof(0, 1, 0, 5, 1, 1, 64, 0, False, 0, b"\1" * 512, "", "")
    job.step(job.nodes["a"].says(Proofs((proof,))))
    assert job.core._watch.sightings.between and job.core._proofs._open
    assert len(msgpack.packb(taken(job.core))) < before + 100
    again = through_bytes(job.core)
    assert again._watch.sightings.between == {} == again._proofs._open and again._proofs._ready == []
    assert again._watch._rails is again._rails and again._watch._verification._carriers is again._watch.carriers


def test_every_field_that_is_left_out_is_there() -> None:
    core = Manager("j", 1, 1, frozenset(), False, 0)
    for held in (core._job, core._proofs, core._watch, core._watch.sightings, core._watch._attention):
        assert TRANSIENT[type(held)].keys() <= vars(held).keys()
        for name, empty in TRANSIENT[type(held)].items():
            assert getattr(held, name) == empty()


def test_its_size_grows_with_the_ranks_alone() -> None:
    small, large = (len(msgpack.packb(taken(in_repairs(nodes, 4)[0]))) for nodes in (10, 40))
    assert large < 4.5 * small


def test_a_tick_after_it_is_a_tick() -> None:
    core, _ = in_repairs()
    again = through_bytes(core)
    assert again.step(SECOND + 300 * MS, Tick()) == core.step(SECOND + 300 * MS, Tick())


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values", [None, [], 7, [[], [], 0], [[], [[0]], 0], ["abc", "abc", 0], [[["x", "", []]], [], 0]]
)
def test_what_is_no_snapshot_is_refused(values: Any) -> None:
    with pytest.raises(Unfit):
        restored(values)


def test_classes_of_others_are_never_made() -> None:
    classes, objects, root = copy.deepcopy(taken(in_repairs()[0]))
    classes[0][0] = "subprocess.Popen"
    with pytest.raises(Unfit, match=r"subprocess\.Popen, which this taskd does not know"):
        restored([classes, objects, root])


def test_a_snapshot_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    values = taken(in_repairs()[0])
    fields = next(row for row in values[0] if row[0].endswith("RankRecord"))[2]
    fields.remove("restarts")
    with pytest.raises(Unfit, match="RankRecord holds other things"):
        restored(values)
    values = taken(in_repairs()[0])

    def other(self: Job, members: object, term: int, more: object) -> None:
        self.more = more  # type: ignore[attr-defined]

    monkeypatch.setattr(Job, "__init__", other)
    with pytest.raises(Unfit, match="Job holds other things"):
        restored(values)


def test_what_is_no_part_of_the_core_is_our_own_bug() -> None:
    core, _ = in_repairs()
    core._rails.standing.known["a", "b"] = Rail("a", "b")
    taken(core)
    core._rails.standing.known["a", "c"] = object()  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="no class of the core"):
        taken(core)
