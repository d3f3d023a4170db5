"""The manager's core: what a quiet beat costs, which agents it admits, and that no outside message breaks it."""

from __future__ import annotations

from taskd.core import limits
from taskd.core.effects import EndJob, Note, Tell
from taskd.core.events import ConnectionLost, Restarted, Tick
from taskd.core.limits import MS, SECOND
from taskd.core.manager import Manager
from taskd.core.messages import Answer, Evidence, Goodbye, Order, Report, Stop
from taskd.core.types import EvidenceKind, Phase, RankState, Stage
from taskd.wire.codec import Envelope, encode
from tests.core.builders import Node, manager, rank_report


def started(ranks: int = 4, recover: bool = True, spawns: bool = True) -> tuple[Manager, Node, Node]:
    """Return a manager and two nodes, 1 s after the start. All ranks have joined and train."""
    core = manager(ranks, recover=recover)
    a, b = Node("a", spawns=spawns), Node("b", spawns=spawns)
    half = ranks // 2
    for node, held in ((a, range(half)), (b, range(half, ranks))):
        core.step(SECOND, node.hello())
        core.step(SECOND, node.report(*(rank_report(rank, acknowledged=False) for rank in held), full=True))
    return core, a, b


def orders(effects: list[object]) -> list[Order]:
    return [effect.message for effect in effects if isinstance(effect, Tell) and isinstance(effect.message, Order)]


def test_a_quiet_beat_gives_no_effect_and_no_row() -> None:
    core, a, _ = started()
    core.step(SECOND, a.report(rank_report(0, step=6), rank_report(1, step=6)))
    for beat in range(1, 50):
        reports = (rank_report(0, step=6 + beat, beat_age_ms=beat), rank_report(1, step=6 + beat, phase=Phase.APPLIED))
        assert core.step(SECOND + beat * 100 * MS, a.report(*reports)) == []
        assert core.to_journal() == ()
        assert core.step(SECOND + beat * 100 * MS, a.report()) == []
        assert core.to_journal() == ()
    assert core.facts(6 * SECOND)["ranks"][0]["step"] == 55


def test_a_new_rank_is_confirmed_and_a_known_one_again_if_it_asks() -> None:
    core, a, _ = started()
    effects = core.step(2 * SECOND, a.report(rank_report(0, acknowledged=False)))
    answers = [effect.message for effect in effects if isinstance(effect, Tell)]
    assert isinstance(answers[0], Answer) and answers[0].confirmed[0].incarnation == 1


def test_the_world_size_may_be_learned_from_an_agent() -> None:
    core = manager(0)
    a = Node("a")
    core.step(SECOND, a.hello(world_size=2))
    core.step(SECOND, a.report(rank_report(0, acknowledged=False)))
    assert [row["state"] for row in core.facts(SECOND)["ranks"]] == ["alive", "absent"]


def test_two_agents_of_one_node() -> None:
    core, a, _ = started()
    newer = Node("a", life=2)
    core.step(2 * SECOND, newer.hello())
    assert core.step(2 * SECOND, a.report(rank_report(0, state=RankState.DEAD))) == []
    refused = core.step(2 * SECOND, a.hello())
    told = [effect for effect in refused if isinstance(effect, Tell)]
    assert told[0].life == 1 and isinstance(told[0].message, Answer) and not told[0].message.accepted
    assert core.counters.by_reason["former life of an agent"] == 1


def test_evidence_of_an_exit_is_death_at_once_and_only_once() -> None:
    core, a, _ = started(recover=False)
    proof = Evidence(EvidenceKind.PROCESS_EXIT, 1, 1, -1, -9, "robust mutex")
    core.step(2 * SECOND, a.says(proof))
    core.step(2 * SECOND, a.says(proof))
    core.step(2 * SECOND, a.report(rank_report(1, state=RankState.DEAD, exit_code=-9, acknowledged=False)))
    assert len(core.incidents(2 * SECOND)) == 1
    assert core.incidents(2 * SECOND)[0]["ranks"] == [1]


def test_evidence_against_another_incarnation_or_from_another_node_kills_nobody() -> None:
    core, a, b = started()
    core.step(2 * SECOND, a.says(Evidence(EvidenceKind.PROCESS_EXIT, 1, 9, -1, -9, "")))
    core.step(2 * SECOND, b.says(Evidence(EvidenceKind.PROCESS_EXIT, 1, 1, -1, -9, "")))
    assert core.incidents(2 * SECOND) == []


def test_an_order_is_repeated_to_who_is_behind_and_not_too_often() -> None:
    core, a, b = started()
    effects = core.step(2 * SECOND, b.report(rank_report(3, state=RankState.DEAD, exit_code=-9, acknowledged=False)))
    assert [order.stage for order in orders(effects)] == [Stage.PARKED, Stage.PARKED]
    assert orders(core.step(2 * SECOND + 100 * MS, a.report())) == []
    assert len(orders(core.step(2 * SECOND + 260 * MS, a.report()))) == 1
    assert orders(core.step(2 * SECOND + 300 * MS, a.report())) == []
    parked = [rank_report(rank, epoch=2, stage=Stage.PARKED, updates=5) for rank in (0, 1)]
    core.step(3 * SECOND, a.report(*parked))
    assert orders(core.step(4 * SECOND, a.report())) == []


def test_a_launcher_and_a_spare_are_told_to_stop_when_all_have_left() -> None:
    core, a, b = started()
    core.step(2 * SECOND, Node("c").hello())
    core.step(2 * SECOND, a.report(*(rank_report(r, state=RankState.LEFT, acknowledged=False) for r in (0, 1))))
    effects = core.step(
        2 * SECOND, b.report(*(rank_report(r, state=RankState.LEFT, acknowledged=False) for r in (2, 3)))
    )
    assert [e.node for e in effects if isinstance(e, Tell) and isinstance(e.message, Stop)] == ["a", "b", "c"]
    assert [e.exit_code for e in effects if isinstance(e, EndJob)] == [0]
    late = core.step(3 * SECOND, a.report())
    assert [type(e.message) for e in late if isinstance(e, Tell)] == [Stop]
    assert core.step(3 * SECOND, Tick()) == []


def test_ranks_that_nobody_ever_saw_are_started_in_the_end() -> None:
    core = manager(4)
    a, b = Node("a"), Node("b")
    effects = [*core.step(0, a.hello()), *core.step(0, b.hello())]
    now = 0
    while now < limits.DEADLINE_MUSTER_NS + SECOND:
        now += 100 * MS
        for event in (a.report(), b.report(), Tick()):
            effects += core.step(now, event)
    found = orders(effects)
    seats = {(seat.rank, seat.node) for order in found for seat in order.seats}
    assert sorted(rank for rank, _ in seats) == [0, 1, 2, 3] and {node for _, node in seats} == {"a", "b"}


def test_a_side_agents_goodbye_leaves_its_ranks_in_doubt_only() -> None:
    core, a, _ = started(recover=False, spawns=False)
    core.step(2 * SECOND, a.says(Goodbye("its workers have ended")))
    states = [row["state"] for row in core.facts(2 * SECOND)["ranks"]]
    assert states == ["suspect", "suspect", "alive", "alive"] and core.incidents(2 * SECOND) == []


def test_a_clock_that_jumps_back_changes_nothing() -> None:
    core, a, _ = started()
    assert core.step(SECOND // 2, a.report()) == []
    deadline = core.next_deadline()
    assert deadline is not None and deadline >= SECOND


def test_a_restart_renews_the_term_and_all_clocks() -> None:
    core, a, b = started()
    core.step(2 * SECOND, b.report(rank_report(3, state=RankState.DEAD, exit_code=-9, acknowledged=False)))
    effects = core.step(500 * SECOND, Restarted())
    assert {order.term for order in orders(effects)} == {2}
    assert [e.kind for e in core.step(500 * SECOND, Tick()) if isinstance(e, Note)] == []
    assert core.step(500 * SECOND + 100 * MS, a.report(term=1)) == []  # the order with the new term is on its way
    answer = core.step(500 * SECOND + 300 * MS, a.report(term=1))
    assert any(isinstance(e, Tell) and e.message.term == 2 for e in answer)


def test_a_leap_of_what_only_grows_is_not_believed() -> None:
    """Otherwise one damaged report would use up the job's epochs, or the numbers that fit into a message."""
    core, a, _ = started()
    for report in (
        Report(True, 2**63 - 1, ()),
        Report(True, 1, (), limits.MAX_EPOCH),
        Report(True, 1, (), 0, (), 2**63 - 1),
    ):
        for effect in core.step(2 * SECOND, a.says(report)):
            assert not isinstance(effect, Tell) or encode(effect.message, Envelope("job", "", 1, 1))
    core.step(2 * SECOND, a.report(rank_report(0, epoch=limits.MAX_EPOCH)))
    facts = core.facts(3 * SECOND)
    assert (facts["term"], facts["epoch"]) == (1, 1)
    assert facts["counters"] == {"leap of a term or an epoch": 2, "leap of a rail order": 1}


def test_an_incarnation_that_nobody_can_have_reached_takes_no_seat() -> None:
    """It would use up all incarnation numbers, and the rank could never be started again."""
    core, a, _ = started()
    effects = core.step(2 * SECOND, a.report(rank_report(0, limits.MAX_INCARNATION, pid=999)))
    refused = [one for effect in effects if isinstance(effect, Tell) for one in getattr(effect.message, "refused", ())]
    assert [one.incarnation for one in refused] == [limits.MAX_INCARNATION]
    facts = core.facts(2 * SECOND)
    assert (facts["ranks"][0]["pid"], facts["ranks"][0]["incarnation"]) == (100, 1)
    assert facts["counters"] == {"incarnation out of reach": 1}
    core.step(2 * SECOND, a.report(rank_report(0, 1 + limits.MAX_LIVES, pid=999)))
    assert core.facts(2 * SECOND)["ranks"][0]["incarnation"] == 1 + limits.MAX_LIVES


def test_who_was_never_ordered_anything_is_in_the_first_epoch() -> None:
    facts = started()[0].facts(2 * SECOND)
    assert {facts["epoch"], *(rank["epoch"] for rank in facts["ranks"])} == {1}


def test_a_manager_that_is_back_hears_all_nodes_before_it_decides() -> None:
    core, a, b = started()
    core.step(2 * SECOND, Restarted())
    dead = rank_report(0, state=RankState.DEAD, exit_code=-9, acknowledged=False)
    core.step(2 * SECOND, a.report(dead, rank_report(1), full=True))
    assert orders(core.step(2 * SECOND + 100 * MS, Tick())) == [], "node b has not been heard"
    core.step(2 * SECOND + 200 * MS, b.report(rank_report(2), rank_report(3), full=True))
    assert orders(core.step(2 * SECOND + 200 * MS, Tick()))[0].stage is Stage.PARKED


def test_a_node_that_never_comes_is_not_waited_for_longer_than_that() -> None:
    core, a, _ = started()
    core.step(2 * SECOND, Restarted())
    dead = rank_report(0, state=RankState.DEAD, exit_code=-9, acknowledged=False)
    at = 2 * SECOND
    while at < 2 * SECOND + limits.HEAR_NS:
        assert orders(core.step(at, a.report(dead, rank_report(1), full=True))) == []
        assert orders(core.step(at, Tick())) == []
        at += 100 * MS
    assert orders(core.step(at, Tick()))[0].stage is Stage.PARKED


def test_beats_of_many_nodes_decide_nothing() -> None:
    nodes = [Node(f"n{i}", slots=64) for i in range(400)]
    core = Manager("job", 400 * 64, 400, frozenset(), False, 0)
    for i, node in enumerate(nodes):
        core.step(0, node.hello())
        core.step(0, node.report(*(rank_report(i * 64 + j, acknowledged=False) for j in range(64)), full=True))
    beats = [[rank_report(i * 64 + j, step=9) for j in range(64)] for i in range(400)]
    said = [node.report(*beat) for node, beat in zip(nodes, beats, strict=True)]
    for event in said:
        assert core.step(MS, event) == []


def test_a_broken_connection_of_an_unknown_node_is_nothing() -> None:
    core = manager()
    assert core.step(0, ConnectionLost("nowhere")) == []
    assert core.next_deadline() is None


def test_ranks_of_a_launcher_that_died_before_it_was_known_are_started_elsewhere() -> None:
    """The other ranks wait for them in their set-up, so nothing else reports them missing."""
    core = manager(4)
    a, c = Node("a"), Node("c")
    effects = [*core.step(0, a.hello()), *core.step(0, c.hello())]
    now = 0
    while now < limits.DEADLINE_MUSTER_NS + 3 * SECOND:
        now += 100 * MS
        held = a.report(rank_report(0, stage=Stage.SETUP, step=-1), rank_report(1, stage=Stage.SETUP, step=-1))
        for event in (held, c.report(), Tick()):
            effects += core.step(now, event)
    found = orders(effects)
    assert {seat.node for order in found for seat in order.seats if seat.rank in (2, 3)} == {"c"}
