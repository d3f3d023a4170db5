"""The others are told of ranks that end with exit code 0 and without a word: at once, once, and not in vain."""

from __future__ import annotations

from collections.abc import Sequence

from taskd.core.effects import Tell
from taskd.core.events import ManagerEvent, Restarted, Tick
from taskd.core.limits import MS, SECOND, TICK_NS
from taskd.core.manager import Manager
from taskd.core.messages import RankReport, RanksEnded
from taskd.core.types import Phase, RankState
from taskd.core.words import LEFT_UNSAID
from tests.core.builders import Node, manager, rank_report

NOW = 2 * SECOND


def running(nodes: int = 2) -> tuple[Manager, list[Node]]:
    """Return a job of two ranks per node."""
    core, there = manager(2 * nodes, nodes), [Node(name) for name in "abcd"[:nodes]]
    for number, node in enumerate(there):
        core.step(SECOND, node.hello())
        core.step(SECOND, node.report(rank_report(2 * number), rank_report(2 * number + 1)))
    return core, there


def ended(rank: int, reason: str = LEFT_UNSAID) -> RankReport:
    return rank_report(rank, state=RankState.LEFT, phase=Phase.APPLIED, reason=reason)


def told(core: Manager, at: int, event: ManagerEvent) -> dict[str, Sequence[int]]:
    """Return the ranks that each node is told of."""
    effects = [effect for effect in core.step(at, event) if isinstance(effect, Tell)]
    messages = {effect.node: effect.message for effect in effects if isinstance(effect.message, RanksEnded)}
    assert all(message.epoch == core.epoch for message in messages.values())
    return {node: message.ranks for node, message in messages.items()}


def test_every_node_with_a_living_rank_is_told_at_once_and_once() -> None:
    core, (_, b) = running()
    assert told(core, NOW, b.report(ended(3))) == {"a": (3,), "b": (3,)}
    assert told(core, NOW + TICK_NS, Tick()) == {}
    assert told(core, NOW + TICK_NS, b.report(ended(3))) == {}
    assert told(core, NOW + 2 * TICK_NS, b.report(ended(2))) == {"a": (2,)}


def test_who_says_farewell_is_not_told_of() -> None:
    core, (_, b) = running()
    assert told(core, NOW, b.report(ended(3, ""))) == {}
    assert told(core, NOW, b.report(ended(2, "it had left in good order, and SIGSEGV ended its interpreter"))) == {}


def test_many_that_end_together_are_one_message() -> None:
    """Otherwise the end of a large job would be as many messages to each node as there are nodes."""
    core, (a, _, c, d) = running(4)
    assert told(core, NOW, d.report(ended(6), ended(7))) == dict.fromkeys("abc", (6, 7))
    assert told(core, NOW + MS, c.report(ended(4))) == {}
    assert told(core, NOW + 2 * MS, c.report(ended(5))) == {}
    assert told(core, NOW + TICK_NS - 1, a.report()) == {}
    assert told(core, NOW + TICK_NS, a.report()) == dict.fromkeys("ab", (4, 5))  # a busy manager does not tick


def test_a_repair_makes_all_connections_anew() -> None:
    core, (a, b) = running()
    dead = rank_report(0, state=RankState.DEAD, exit_code=-9)
    core.step(NOW, a.report(dead))
    assert told(core, NOW + MS, b.report(ended(3))) == {}


def test_a_manager_that_comes_back_tells_again() -> None:
    core, (_, b) = running()
    core.step(NOW, b.report(ended(3)))
    core.step(NOW + MS, Restarted())
    assert told(core, NOW + SECOND, Tick()) == {"a": (3,), "b": (3,)}
