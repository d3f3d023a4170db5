"""The simulated shells: what a story takes for granted of sockets, of what a manager keeps, and of its own commands."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from taskd.core import limits
from taskd.core.events import Connected, Disconnected
from taskd.sim.scenario import FAULTS, Options
from taskd.sim.setting import Machines
from taskd.sim.starts import SLACK
from taskd.sim.watch import Violation, Watch
from taskd.sim.world import World

SECOND = 1_000_000_000
QUIET = Options(4, 0.1, 1, kinds=())


def test_order_of_kinds_is_no_part_of_a_story() -> None:
    """The printed command names the kinds in their own order, and has to play the same story."""
    kinds = ("node", "agent", "manager")
    assert Options(5, 1.0, 64, kinds) == Options(5, 1.0, 64, tuple(reversed(kinds)))
    assert replace(QUIET, kinds=tuple(reversed(FAULTS))).command() == replace(QUIET, kinds=tuple(FAULTS)).command()
    with pytest.raises(ValueError, match="meteor"):
        Options(5, 1.0, 64, ("meteor",))


def test_an_old_connection_does_not_end_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(QUIET, Machines())
    node = world.nodes["n0"]
    told: list[Any] = []
    monkeypatch.setattr(node, "_step", told.append)
    node.core, node.life = object(), 7
    node.connect(7)
    first = node.line.connection
    node.connect(7)  # the manager was away for a moment only
    node.disconnect(7, first)
    assert [type(event) for event in told] == [Connected, Connected]
    node.disconnect(7, node.line.connection)
    assert isinstance(told[-1], Disconnected)


def test_a_manager_without_its_journal_is_in_a_new_term() -> None:
    """The shell keeps the number of the last term beside the journal."""
    world = World(QUIET, Machines())
    manager = world.manager
    terms = [manager.core.term]
    for _ in range(3):
        manager.crash(len(manager.journal))
        manager.restart()
        terms.append(manager.core.term)
    assert terms == [1, 2, 3, 4]
    manager.crash(0)
    manager.restart()
    assert manager.core.term == 5, "its own journal begins in term 3"


def test_steps_made_again_are_steps() -> None:
    """After a start over the job makes its old updates once more, so its ranks were not started in vain."""
    watch = Watch(4)
    for epoch in range(1, limits.RESTARTS_AT_ONCE + SLACK + 3):
        watch.started(0, epoch * SECOND)
        watch.stepped(epoch, 1, watch.oracle.model(1), range(4))
        watch.starts.died(0, 100 + epoch, (epoch + 1) * SECOND - 1, watch.steps)
    assert watch.best == 1


def test_starts_in_vain_have_to_rest() -> None:
    watch = Watch(4)
    with pytest.raises(Violation, match="vain start 3"):
        for turn in range(limits.RESTARTS_AT_ONCE + SLACK + 2):
            watch.started(0, turn * SECOND)
            watch.starts.died(0, 100 + turn, (turn + 1) * SECOND - 1, watch.steps)
