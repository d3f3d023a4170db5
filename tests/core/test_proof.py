"""Proofs: when each slice is due, how the manager judges digests, and what it does about a difference."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core import limits
from taskd.core.effects import Note, Tell
from taskd.core.events import Restarted, Tick
from taskd.core.limits import MS, SECOND
from taskd.core.manager import Manager
from taskd.core.messages import Order, Proof, Proofs
from taskd.core.proof.plan import Rhythm, due, following, slices
from taskd.core.types import RankState, Stage
from tests.core.builders import Node, manager, rank_report

LAYOUT = 77
NAMES = "modes\nweight\nmoment\nlr"
TOTAL = 4
UNLIKE = "{} is not the same on all ranks"
SO = "; so no rank's state can replace another's: if a rank is lost, all start over"


# ---- the schedule -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 11])
def test_slices_are_odd_in_number_and_hold_every_unit_once(count: int) -> None:
    cut = slices([400] * count, 1000)
    assert len(cut) % 2 == 1
    assert [unit for begin, end in cut for unit in range(begin, end)] == [*range(count)]
    assert all(end - begin <= 2 for begin, end in cut)


def test_a_unit_that_is_larger_than_a_slice_is_one_by_itself() -> None:
    assert [part for part in slices([10, 5000, 10], 1000) if part[0] < part[1]] == [(0, 1), (1, 2), (2, 3)]


def test_every_slice_has_its_turn_whatever_the_rhythm() -> None:
    for every in (1, 2, 64, 1024):
        seen = [at for updates in range(1, 7 * every + 1) if (at := due(updates, every, 7)) >= 0]
        assert sorted(seen) == [*range(7)]


def test_ranks_of_different_rhythms_digest_the_same_slice_where_both_digest_one() -> None:
    for updates in range(1, 4000):
        ours, theirs = due(updates, 16, 5), due(updates, 256, 5)
        assert theirs < 0 or ours == theirs


def test_nothing_is_due_before_the_rhythm_is_known() -> None:
    assert [due(updates, 0, 3) for updates in range(10)] == [-1] * 10


@given(updates=st.integers(1, 1 << 30), power=st.integers(0, 20), count=st.integers(0, 50))
def test_nothing_is_due_before_what_follows(updates: int, power: int, count: int) -> None:
    every, slices = 1 << power, 2 * count + 1
    after = following(updates, every)
    assert updates < after <= updates + every and due(after, every, slices) >= 0
    assert all(due(between, every, slices) < 0 for between in range(updates + 1, min(after, updates + 50)))
    assert following(updates, 0) == updates + 1


def test_the_rhythm_costs_no_more_than_its_share() -> None:
    rhythm = Rhythm()
    for _ in range(limits.PROOF_MEASURES):
        assert rhythm.every == 0
        rhythm.step_took(20 * MS)
    for _ in range(limits.PROOF_MEASURES):
        rhythm.proof_took(2 * MS)
    assert rhythm.every & (rhythm.every - 1) == 0
    assert 2 * MS / (rhythm.every * 20 * MS) <= 1 / limits.PROOF_SHARE
    assert 2 * MS / (rhythm.every * 20 * MS) > 1 / limits.PROOF_SHARE / 4


def test_short_steps_bring_no_flood_of_messages() -> None:
    rhythm = Rhythm(ranks=10 * limits.PROOF_RANKS)
    for _ in range(limits.PROOF_MEASURES):
        rhythm.step_took(1 * MS)
        rhythm.proof_took(1)
    assert rhythm.every * MS >= 10 * limits.PROOF_PERIOD_NS


def test_a_rhythm_on_the_edge_does_not_go_to_and_fro() -> None:
    rhythm, seen = Rhythm(), set()
    for at in range(200):
        rhythm.step_took(int((1.02 if at % 60 < 30 else 0.98) * limits.PROOF_PERIOD_NS / 64))
        rhythm.proof_took(1)
        seen.add(rhythm.every)
    assert seen - {0} in ({64, 128}, {128}), seen
    assert rhythm.every == 128


# ---- the manager --------------------------------------------------------------------------------------------------


class Job:
    """Four ranks on two nodes, and the digests that their agents send."""

    def __init__(self, ranks: int = 4, **changes: Any) -> None:
        self.core: Manager = manager(ranks, **changes)
        self.now = SECOND
        half = ranks // 2
        self.ranks = ranks
        self.nodes = {
            rank: node
            for node, held in ((Node("a", slots=4), range(half)), (Node("b", slots=4), range(half, ranks)))
            for rank in held
        }
        for node in (self.nodes[0], self.nodes[ranks - 1]):
            self.core.step(self.now, node.hello())
            held = [rank for rank, one in self.nodes.items() if one is node]
            reports = [rank_report(rank, acknowledged=False, updates=9, stage=Stage.RUNNING) for rank in held]
            self.core.step(self.now, node.report(*reports, full=True))

    def step(self, *reports: Any) -> list[Any]:
        """Report these ranks and return the effects."""
        effects: list[Any] = []
        for one in reports:
            self.now += MS
            effects += self.core.step(self.now, self.nodes[one.rank].report(one))
        return effects

    def dies(self, *ranks: int) -> list[Any]:
        """Kill these ranks and return the effects."""
        dead = [rank_report(rank, state=RankState.DEAD, exit_code=-9, acknowledged=False, updates=9) for rank in ranks]
        return self.step(*dead) + self.waits()

    def waits(self) -> list[Any]:
        """Let two seconds pass, and return the effects."""
        effects: list[Any] = []
        for _ in range(20):
            self.now += SECOND // 10
            effects += self.core.step(self.now, Tick())
        return effects

    def replaces(self, *ranks: int) -> None:
        """Kill these ranks, and replace them in place."""
        self.dies(*ranks)
        run = Stage.RUNNING
        for stage, held in ((Stage.PARKED, 9), (Stage.REBUILT, 9), (Stage.RESTORED, 9), (run, 9), (run, 10)):
            for rank in range(self.ranks):
                new = rank in ranks
                updates = -1 if new and stage in (Stage.PARKED, Stage.REBUILT) else held
                self.step(
                    rank_report(rank, 1 + new, epoch=self.epoch, stage=stage, updates=updates, acknowledged=False)
                )
        assert self.incidents[-1]["outcome"] == "healed"

    def tell_replaced(self, updates: int, held: dict[int, list[int]], *replaced: int) -> list[str]:
        """Send all digests after a repair, and return the notes. `held`: by rank, if other than usual."""
        self.effects = []
        for rank in range(self.ranks):
            new = rank in replaced
            words = held.get(rank, [1, 2, 3, 4])
            self.effects += self.tell(rank, updates, words, epoch=self.epoch, incarnation=1 + new, taken=new)
        return [effect.text for effect in self.effects if isinstance(effect, Note)]

    def tell(self, rank: int, updates: int, words: Iterable[int], first: int = 0, **changes: Any) -> list[Any]:
        """Send one rank's digests and return the effects."""
        values: dict[str, Any] = {
            "rank": rank,
            "incarnation": 1,
            "epoch": 0,
            "updates": updates,
            "every": 64,
            "layout": LAYOUT,
            "total": TOTAL,
            "harmless": 1,
            "taken": False,
            "first": first,
            "digests": b"".join(word.to_bytes(8, "little") for word in words),
            "names": "",
            "missing": "",
            **changes,
        }
        if rank == 0 and not first:
            values["names"] = NAMES
        self.now += MS
        return [*self.core.step(self.now, self.nodes[rank].says(Proofs((Proof(**values),))))]

    def tell_all(self, updates: int, **other: list[int]) -> list[str]:
        """Send all digests and return the notes. Ranks differ only where `other` says so: r2=[...]."""
        effects: list[Any] = []
        for rank in range(self.ranks):
            effects += self.tell(rank, updates, other.get(f"r{rank}", [1, 2, 3, 4]))
        self.effects = effects
        return [effect.text for effect in effects if isinstance(effect, Note)]

    def starts_over(self) -> bool:
        return starts_all(self.effects)

    @property
    def epoch(self) -> int:
        """The epoch that the manager is in."""
        found: int = self.core.facts(self.now)["epoch"]
        return found

    @property
    def proof(self) -> dict[str, Any]:
        found: dict[str, Any] = self.core.facts(self.now)["proof"]
        return found

    @property
    def incidents(self) -> list[dict[str, Any]]:
        return self.core.incidents(self.now)


def test_what_is_alike_is_proved_and_nothing_is_said() -> None:
    job = Job()
    assert job.tell_all(1) == [] and job.tell_all(64) == []
    assert (job.proof["updates"], job.proof["ranks"], job.proof["whole_every"]) == (64, 4, 64)
    assert job.incidents == [] and job.proof["not_compared"] == []


def test_a_rank_that_differs_from_three_is_named_and_all_start_over() -> None:
    job = Job()
    job.tell_all(1)
    notes = job.tell_all(64, r2=[1, 9, 3, 4])
    assert notes[0] == "after update 64 rank 2 holds other contents of weight than ranks 0-1 and 3, which agree"
    assert job.starts_over()
    (incident,) = job.incidents
    assert (incident["kind"], incident["ranks"], incident["strategy"]) == ("proof", [2], "respawn")
    assert "weight" in incident["reason"] and job.proof["updates"] == 1 and job.proof["differences"] == 1


def test_of_two_ranks_both_are_named_and_nobody_is_accused() -> None:
    job = Job(2)
    job.tell_all(1)
    notes = job.tell_all(64, r1=[1, 2, 9, 4])
    assert notes[0] == "after update 64 ranks 0-1 do not hold the same of moment: two ranks cannot tell which is wrong"
    assert job.incidents[0]["ranks"] == [0, 1] and job.starts_over()


def test_several_items_are_named_and_the_rest_counted() -> None:
    job = Job()
    job.tell_all(1)
    notes = job.tell_all(64, r3=[7, 8, 9, 10])
    assert "rank 3 holds other contents of modes, weight, moment and 1 more than ranks 0-2" in notes[0]


def test_what_was_never_alike_is_excepted_once_and_no_incident() -> None:
    job = Job()
    notes = job.tell_all(1, r0=[1, 2, 5, 4], r1=[1, 2, 6, 4])
    assert notes == [f"not compared between ranks: {UNLIKE.format('moment')}{SO}"]
    assert job.tell_all(64, r0=[1, 2, 7, 4], r3=[1, 2, 9, 4]) == []
    assert job.incidents == [] and job.proof["not_compared"] == ["moment"] and job.proof["updates"] == 64


def test_what_has_no_digest_is_said_once_and_not_compared() -> None:
    job = Job()
    words = [1, 2, 0, 4]
    notes = []
    for rank in range(4):
        notes += job.tell(rank, 1, words, missing="no digest can be computed of table (a Jagged)")
    texts = [one.text for one in notes if isinstance(one, Note)]
    assert texts == ["not compared between ranks: no digest can be computed of table (a Jagged)"]
    assert job.tell_all(64, r1=[1, 2, 0, 4]) == []


def test_separate_ways_of_all_ranks_are_said_and_left_alone() -> None:
    job = Job()
    job.tell_all(1)
    notes = job.tell_all(64, r0=[1, 5, 3, 4], r1=[1, 6, 3, 4], r2=[1, 7, 3, 4])
    assert not job.starts_over() and "nobody knows" in notes[0]
    assert "the script makes its ranks unlike: observe" in notes[0]
    assert job.tell_all(128, r0=[1, 5, 3, 4], r1=[1, 6, 3, 4], r2=[1, 7, 3, 4]) == []
    (incident,) = job.incidents
    assert (incident["outcome"], incident["ranks"]) == ("observed", [0, 1, 2, 3])


def test_what_changes_no_weight_starts_nobody_over() -> None:
    job = Job()
    job.tell_all(1)
    notes = job.tell_all(64, r0=[9, 2, 3, 4])
    assert not job.starts_over() and "this by itself changes no weight, and a script may mean it: observe" in notes[0]
    assert job.incidents[0]["outcome"] == "observed"


def test_without_recovery_a_difference_is_an_incident_all_the_same() -> None:
    job = Job(recover=False)
    job.tell_all(1)
    notes = job.tell_all(64, r2=[1, 9, 3, 4])
    assert not job.starts_over() and "recovery is off in this job: observe" in notes[0]
    assert job.incidents[0]["ranks"] == [2]


def starts_all(effects: list[Any]) -> bool:
    """Whether all ranks are told to start over."""
    orders = [effect.message for effect in effects if isinstance(effect, Tell)]
    return any(isinstance(order, Order) and order.fresh for order in orders)


def again(job: Job, epoch: int, incarnation: int, updates: int, **other: list[int]) -> list[str]:
    """Send the digests of all ranks after they have started over, and return the notes."""
    effects: list[Any] = []
    for rank in range(job.ranks):
        words = other.get(f"r{rank}", [1, 2, 3, 4])
        effects += job.tell(rank, updates, words, epoch=epoch, incarnation=incarnation)
    job.effects = effects
    return [effect.text for effect in effects if isinstance(effect, Note)]


def test_the_same_item_again_starts_nobody_over_again() -> None:
    job = Job()
    job.tell_all(1)
    job.tell_all(64, r2=[1, 9, 3, 4])
    for rank in range(4):
        started = rank_report(rank, 2, epoch=2, acknowledged=False)
        job.core.step(job.now, job.nodes[rank].report(started))
    assert job.tell_all(64, r1=[1, 9, 3, 4]) == []  # from the incarnation before, which is over
    assert again(job, 2, 2, 1) == []
    notes = again(job, 2, 2, 64, r2=[1, 9, 3, 4])
    assert "all have started over for this before, and it has not helped: observe" in notes[0]
    assert not job.starts_over() and len(job.incidents) == 2
    assert again(job, 2, 2, 128, r2=[1, 9, 3, 4]) == []


def test_ranks_that_tell_less_often_are_compared_where_all_have_told() -> None:
    job = Job()
    job.tell_all(1)
    for updates in range(64, 64 * 8, 64):  # rank 3 sends only every 512th
        for rank in range(3):
            assert job.tell(rank, updates, [1, 2, 3, 4]) == []
    assert job.proof["updates"] == 1
    job.tell_all(512)
    assert (job.proof["updates"], job.proof["ranks"]) == (512, 4)


def test_what_not_all_have_told_is_judged_by_those_who_did() -> None:
    job = Job()
    job.tell_all(1)
    notes: list[str] = []
    for updates in range(64, 64 * (limits.PROOF_KEPT + 3), 64):
        for rank in range(3):
            effects = job.tell(rank, updates, [1, 9, 3, 4] if rank == 1 else [1, 2, 3, 4])
            notes += [effect.text for effect in effects if isinstance(effect, Note)]
    assert notes[0] == "after update 64 rank 1 holds other contents of weight than ranks 0 and 2, which agree"


def test_slices_and_the_whole_are_compared_unit_by_unit() -> None:
    job = Job()
    job.tell_all(1)
    job.tell(0, 64, [1, 2, 3, 4])
    job.tell(1, 64, [2, 3], first=1)
    job.tell(2, 64, [2, 3], first=1)
    effects = job.tell(3, 64, [2, 8], first=1)
    texts = [effect.text for effect in effects if isinstance(effect, Note)]
    assert texts[0] == "after update 64 rank 3 holds other contents of moment than ranks 0-2, which agree"


def test_a_rank_that_lists_other_units_is_named() -> None:
    job = Job()
    job.tell_all(1)
    effects: list[Any] = []
    for rank in range(4):
        effects += job.tell(rank, 64, [1, 2, 3, 4], layout=78 if rank == 1 else LAYOUT)
    texts = [effect.text for effect in effects if isinstance(effect, Note)]
    assert "rank 1 holds other contents of the list of what is compared than ranks 0 and 2-3" in texts[0]


def test_ranks_that_never_listed_the_same_are_told_once_and_left_alone() -> None:
    job = Job()
    effects: list[Any] = []
    for updates in (1, 64, 128):
        for rank in range(4):
            effects += job.tell(rank, updates, [1, 2, 3, 4], layout=rank // 2 << limits.PROOF_HALF)
    (note,) = effects
    assert note.text == f"not compared between ranks: {UNLIKE.format('the list of what is compared')}{SO}"
    assert job.incidents == []
    assert starts_all(job.dies(3)), "rank 3 has something of its own"


def test_strange_proofs_change_nothing() -> None:
    job = Job()
    job.tell_all(1)
    assert job.tell(1, 64, [9, 9, 9, 9], incarnation=7) == []
    assert job.tell(1, 64, [9, 9, 9, 9], first=2) == []  # beyond the last unit
    job.nodes[1], kept = job.nodes[3], job.nodes[1]
    assert job.tell(1, 64, [9, 9, 9, 9]) == []  # another node sends it
    job.nodes[1] = kept
    assert job.tell_all(64) == [] and job.proof["updates"] == 64
    assert job.core.counters.by_reason["proof that fits no rank of its node"] == 2


def test_a_repair_before_the_first_proof_hides_nothing() -> None:
    for ranks, words in ((4, "rank 3 holds other contents of weight than ranks 0-2"), (2, "ranks 0-1 do not hold")):
        job = Job(ranks)
        job.replaces(ranks - 1)
        notes = job.tell_replaced(10, {ranks - 1: [1, 9, 3, 4]}, ranks - 1)
        assert any(words in text for text in notes), notes


@pytest.mark.parametrize("replaced", [(3,), (1, 3), (1, 2, 3), (0, 1, 2)])
def test_what_was_a_ranks_own_is_lost_in_a_repair(replaced: tuple[int, ...]) -> None:
    """No proof came before, and all differ. Ranks that were replaced hold what another rank had, so all start over."""
    job = Job()
    job.replaces(*replaced)
    notes = job.tell_replaced(10, {rank: [1, 2, 5 + rank, 4] for rank in range(4)}, *replaced)
    assert any("ranks 0-3 do not hold the same of moment: rank" in text and "is lost" in text for text in notes), notes
    assert job.starts_over(), notes


@pytest.mark.parametrize(
    ("updates", "told", "late", "over"),
    [
        (9, "012", "", False),  # rank 3 has told nothing: what each rank begins with is compared in the repair itself
        (9, "3", "012", False),  # the others tell when they have parked, and hold the same
        (9, "3", "012 apart", True),
        (9, "", "", False),  # nobody compares in this job
    ],
)
def test_what_ranks_held_before_a_repair_counts_in_it(updates: int, told: str, late: str, over: bool) -> None:
    job = Job()
    late, _, apart = late.partition(" ")
    words = [[1, 2, 3 + rank if apart else 3, 4] for rank in range(4)]
    for rank in map(int, told):
        job.tell(rank, 1, words[rank])
    effects = job.dies(3)
    for rank in map(int, late):
        effects += job.tell(rank, 1, words[rank])
    for rank in range(4):
        held = -1 if rank == 3 else updates
        new = rank == 3
        effects += job.step(rank_report(rank, 1 + new, epoch=job.epoch, stage=Stage.PARKED, updates=held))
    effects += job.waits()
    assert starts_all(effects) == over, [effect.text for effect in effects if isinstance(effect, Note)]


def test_what_was_taken_long_ago_is_no_reason_to_start_over() -> None:
    """The first proof after the repair has shown that it was the same. Later the script makes its ranks unlike."""
    job = Job()
    job.tell_all(1)
    job.replaces(3)
    assert job.tell_replaced(10, {}, 3) == []
    apart = {rank: [1, 5 + rank, 3, 4] for rank in range(4)}
    notes = job.tell_replaced(5000, apart, 3)
    assert "most do not agree, so nobody knows; this is no damage" in notes[0] and not job.starts_over()
    assert starts_all(job.dies(1))


def test_lists_that_differ_in_what_changes_no_weight_hinder_no_repair() -> None:
    job = Job()
    notes: list[str] = []
    for updates in (1, 64):
        for rank in range(4):
            effects = job.tell(rank, updates, [1, 2, 3, 4], layout=LAYOUT + (rank == 0))
            notes += [effect.text for effect in effects if isinstance(effect, Note)]
    assert notes == [f"not compared between ranks: {UNLIKE.format('the list of what is compared')}"]
    assert not starts_all(job.dies(2))


def test_lists_that_become_alike_and_differ_again_are_found() -> None:
    job = Job()
    for rank in range(4):
        job.tell(rank, 1, [1, 2, 3, 4], layout=rank << limits.PROOF_HALF)
    assert job.tell_all(2) == []
    effects: list[Any] = []
    for rank in range(4):
        effects += job.tell(rank, 64, [1, 2, 3, 4], layout=78 if rank == 1 else LAYOUT)
    texts = [effect.text for effect in effects if isinstance(effect, Note)]
    assert "rank 1 holds other contents of the list of what is compared than ranks 0 and 2-3" in texts[0]


def test_nobody_is_blamed_for_what_was_a_ranks_own() -> None:
    """Rank 0 was replaced from rank 1. Rank 3 holds something else, as it did before."""
    job = Job()
    job.replaces(0)
    notes = job.tell_replaced(10, {3: [1, 2, 9, 4]}, 0)
    assert "do not hold the same of moment: rank 0 took the state of others in a repair" in notes[0]
    assert job.starts_over() and job.incidents[-1]["ranks"] == [0, 1, 2, 3]


def test_what_differs_by_design_from_the_start_makes_all_start_over_when_a_rank_is_lost() -> None:
    job = Job()
    job.tell_all(1, r0=[1, 5, 5, 4], r1=[1, 6, 6, 4], r2=[1, 7, 7, 4])
    assert job.incidents == []
    effects = job.dies(2)
    assert starts_all(effects)
    decision = next(effect.text for effect in effects if isinstance(effect, Note) and effect.kind == "decision")
    assert f"; {UNLIKE.format('weight')}, and no rank's state can replace another's, so all start again" in decision


def test_what_differs_later_makes_all_start_over_when_a_rank_is_lost() -> None:
    job = Job()
    job.tell_all(1)
    job.tell_all(64, r0=[1, 5, 3, 4], r1=[1, 6, 3, 4], r2=[1, 7, 3, 4])
    assert not job.starts_over()
    assert starts_all(job.dies(2))


def test_what_changes_no_weight_may_differ_when_a_rank_is_lost() -> None:
    for first in (1, 64):
        job = Job()
        if first > 1:
            job.tell_all(1)
        job.tell_all(first, r0=[9, 2, 3, 4])
        assert not starts_all(job.dies(2))


def test_a_survivor_without_a_state_takes_none_of_ranks_that_differ() -> None:
    """Nobody died: a collective failed, and rank 1 was stopped inside its update."""
    for differ in (False, True):
        job = Job()
        job.tell_all(1, **({"r0": [1, 2, 5, 4], "r1": [1, 2, 6, 4]} if differ else {}))
        effects = job.step(rank_report(1, ok=False, reason="it broke", updates=8))
        for rank in range(4):
            held, whole = (8, False) if rank == 1 else (9, True)
            parked = rank_report(rank, epoch=2, stage=Stage.PARKED, updates=held, ok=whole, acknowledged=False)
            effects += job.step(parked)
        effects += job.waits()
        assert starts_all(effects) == differ, effects


def test_who_was_started_again_with_all_others_is_no_taker() -> None:
    """One rank died once more than the others, in a failed repair before all started over. So incarnations differ here.
    Ranks that differ from the start are still never blamed."""
    job = Job(2)
    for rank in (0, 1):
        started = rank_report(rank, 2 + rank, epoch=2, acknowledged=False)
        job.core.step(job.now, job.nodes[rank].report(started))
    effects = [job.tell(rank, 1, [1, 2 + rank, 3, 4], epoch=2, incarnation=2 + rank) for rank in (0, 1)]
    (note,) = [effect.text for effect in effects[1] if isinstance(effect, Note)]
    assert note == f"not compared between ranks: {UNLIKE.format('weight')}{SO}"
    assert job.incidents == []


def test_a_quiet_proof_is_in_no_journal_and_a_verdict_is() -> None:
    job = Job()
    job.tell_all(1)
    for rank in range(4):
        job.tell(rank, 64, [1, 2, 3, 4])
        assert job.core.to_journal() == ()
    for rank in range(4):
        job.tell(rank, 128, [1, 2, 3, 9] if rank == 0 else [1, 2, 3, 4])
    assert [type(event).__name__ for event in job.core.to_journal()] == ["Reached", "ProofVerdict"]


def test_a_manager_that_is_back_knows_what_was_alike() -> None:
    job = Job()
    rows: list[Any] = []
    for rank in range(4):
        job.tell(rank, 1, [rank, 2, 3, 4])
        rows += job.core.to_journal()
    fresh = Job()
    for event in rows:
        fresh.core.replay(fresh.now, event)
    fresh.core.step(fresh.now, Restarted())
    notes = fresh.tell_all(64, r2=[5, 2, 9, 4])
    assert len(notes) >= 1 and "rank 2 holds other contents of moment than" in notes[0]


def test_a_dead_rank_is_not_waited_for() -> None:
    job = Job(recover=False)
    job.tell_all(1)
    dead = rank_report(3, state=RankState.DEAD, exit_code=-9, acknowledged=False)
    job.core.step(job.now, job.nodes[3].report(dead))
    for rank in range(3):
        job.tell(rank, 64, [1, 2, 3, 4])
    assert (job.proof["updates"], job.proof["ranks"]) == (64, 3)
