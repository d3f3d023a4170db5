"""Which part of an order each node gets. All parts together grow with the job, not with its square."""

from __future__ import annotations

from taskd.core.effects import ManagerEffect, Tell
from taskd.core.messages import Fetch, Goodbye, Order, Report, Seat
from taskd.core.parts import Parts
from taskd.core.records import NodeRecord
from taskd.core.types import RankState, Stage, Strategy
from tests.core.builders import Node, manager, rank_report

SEATS = (Seat(0, 2, "a"), Seat(1, 2, "a"), Seat(4, 3, "c"))
FETCHES = (Fetch(0, 2), Fetch(1, 4), Fetch(5, 3))
ORDER = Order(1, 2, Stage.RESTORED, 1, 7, SEATS, FETCHES, "why")


def orders(effects: list[ManagerEffect]) -> dict[str, tuple[Seat, ...]]:
    told = [(effect.node, effect.message) for effect in effects if isinstance(effect, Tell)]
    return {name: message.seats for name, message in told if isinstance(message, Order)}


def node(name: str, *ranks: int, former: tuple[int, ...] = ()) -> NodeRecord:
    return NodeRecord(name, ranks={*ranks}, former_ranks={*former})


def test_a_node_is_told_of_its_own_ranks() -> None:
    parts = Parts(ORDER)
    assert parts.of(node("a", 0, 1)) == Order(1, 2, Stage.RESTORED, 1, 7, SEATS[:2], FETCHES[:2], "why")
    assert parts.of(node("b", 2, 3)) == Order(1, 2, Stage.RESTORED, 1, 7, (), (FETCHES[0], FETCHES[2]), "why")


def test_whose_rank_has_moved_is_told_where_it_is() -> None:
    parts = Parts(ORDER)
    assert parts.of(node("d", former=(4, 9))).seats == SEATS[2:]


def test_a_seat_on_a_node_that_has_yet_to_take_it() -> None:
    assert Parts(ORDER).of(node("c")).seats == SEATS[2:]


def test_nodes_without_a_part_share_one() -> None:
    parts = Parts(ORDER)
    rest = parts.of(node("e", 7, 8))
    assert rest is parts.of(node("f")) and (rest.seats, rest.fetches) == ((), ())
    whole = Order(1, 2, Stage.PARKED, 1, -1, (), (), "why")
    assert Parts(whole).of(node("e", 7, 8)) is whole


def test_all_orders_of_a_start_over_name_each_rank_once() -> None:
    core = manager(32, 16, strategies=frozenset({Strategy.RESPAWN}))
    nodes = [Node(f"n{at:02}") for at in range(16)]
    for one in nodes:
        core.step(1, one.hello(world_size=32))
    for at, one in enumerate(nodes):
        core.step(1, one.report(rank_report(2 * at), rank_report(2 * at + 1)))
    dead = rank_report(5, state=RankState.DEAD, exit_code=-9)
    effects = core.step(2, nodes[2].says(Report(False, 1, (dead,))))
    told = orders(effects)
    assert len(told) == 16 and sorted(seat.rank for seats in told.values() for seat in seats) == [*range(32)]
    assert all(seat.node == name for name, seats in told.items() for seat in seats)


def test_a_node_that_comes_back_is_told_where_its_ranks_are() -> None:
    core = manager(4, 3, strategies=frozenset({Strategy.RECOVER}))
    a, b, c = Node("a"), Node("b"), Node("c")
    for one in (a, b, c):
        core.step(1, one.hello(world_size=4))
    core.step(1, a.report(rank_report(0), rank_report(1)))
    core.step(1, b.report(rank_report(2), rank_report(3)))
    moved = (Seat(2, 2, "c"), Seat(3, 2, "c"))
    assert orders(core.step(2, b.says(Goodbye("stopped")))) == {"a": (), "c": moved}
    assert orders(core.step(3, Node("b", life=2).hello(world_size=4))) == {"b": moved}
