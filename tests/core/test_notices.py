"""The notices for a start over and for a replaced rank: which rank, why, what it costs, and what would help."""

from __future__ import annotations

from typing import Any

import pytest

from taskd.core.effects import EndJob, Note, Tell
from taskd.core.events import ManagerEvent, Reached, Tick
from taskd.core.limits import MS, SECOND
from taskd.core.manager import Manager
from taskd.core.messages import Order, RankReport
from taskd.core.repair.notices import CURE, NO_SESSION, again
from taskd.core.types import Phase, RankState, Stage
from taskd.core.words import LEFT_EARLY
from tests.core.builders import Node, manager, rank_report

NOW = 2 * SECOND


def running(step: int, max_restarts: int = 3) -> tuple[Manager, Node]:
    """Return a manager and one node whose two ranks are in this step, or in their set-up if it is below 0."""
    core, a = manager(2, 1, max_restarts=max_restarts), Node("a")
    core.step(SECOND, a.hello())
    phase = Phase.BODY if step >= 0 else Phase.SETUP
    ranks = (rank_report(rank, step=step, phase=phase, acknowledged=False) for rank in (0, 1))
    core.step(SECOND, a.report(*ranks, full=True))
    return core, a


def dead(rank: int, incarnation: int = 1, **changes: Any) -> RankReport:
    return rank_report(rank, incarnation, state=RankState.DEAD, exit_code=-9, **changes)


def parked(rank: int, reason: str, **changes: Any) -> RankReport:
    return rank_report(rank, epoch=2, stage=Stage.PARKED, ok=False, reason=reason, **changes)


def starting_over(core: Manager) -> Order:
    """Return the order to start over. It comes after the time in which simultaneous failures are gathered."""
    effects = [effect for at in range(NOW, NOW + 2 * SECOND, 50 * MS) for effect in core.step(at, Tick())]
    orders = [effect.message for effect in effects if isinstance(effect, Tell) and isinstance(effect.message, Order)]
    assert orders[-1].fresh, orders
    return orders[-1]


@pytest.mark.parametrize(("reason", "curable"), [(NO_SESSION, True), ("its update is torn", False)])
def test_who_died_why_all_start_over_and_what_would_help(reason: str, curable: bool) -> None:
    core, a = running(step=5)
    core.step(NOW, a.report(dead(1)))
    core.step(NOW + MS, a.report(parked(0, reason)))
    told = starting_over(core).reason
    assert told.startswith(f"rank 1 died (SIGKILL) on node a; no survivor holds a whole state ({reason}). {again(5)} ")
    assert " 5 steps are done again: from the script's own checkpoint" in told
    assert "Restarts left for rank 1: 2 of 3; --max-restarts 0 ends the job instead, as torchrun does." in told
    assert (CURE in told) is curable
    assert core.incidents(NOW)[0]["notes"][-1] == told
    assert core.facts(NOW)["incidents"]["started_over"] == 1


def test_a_death_before_any_step_and_the_last_start() -> None:
    core, a = running(step=-1, max_restarts=1)
    core.step(NOW, a.report(dead(1)))
    told = starting_over(core).reason
    assert told.startswith("rank 1 died (SIGKILL) on node a before any step was seen to be done. ")
    assert "Restarts left for rank 1: none of 1, another death ends the job; " in told and told.endswith(CURE)


@pytest.mark.parametrize(
    ("step", "lost", "words"), [(5, 5, "5 steps lost"), (1, 1, "1 step lost"), (-1, None, "no finished step was seen")]
)
def test_an_incident_in_which_all_started_over_is_never_healed(step: int, lost: int | None, words: str) -> None:
    core, a = running(step)
    core.step(NOW, a.report(dead(1, step=step)))
    if step >= 0:
        core.step(NOW + MS, a.report(parked(0, NO_SESSION, step=step)))
    epoch = starting_over(core).epoch
    at = NOW + 3 * SECOND
    notes: list[Note] = []
    after = max(0, step)
    second = 3 if step >= 0 else 2  # a repair in place was tried first
    for done in (0, 1):
        for rank, incarnation in enumerate((2, second)):
            report = rank_report(rank, incarnation, epoch=epoch, step=done, pid=200 + rank)
            notes += [e for e in core.step(at, a.report(report)) if isinstance(e, Note)]
    (incident,) = core.incidents(at)
    assert (incident["strategy"], incident["outcome"]) == ("respawn", "started over"), notes
    assert incident["steps_lost"] == lost and core.facts(at)["incidents"]["steps_lost"] == after
    over, closed = notes[-2:]
    assert over.kind == "over" and over.text.startswith("started over in ") and f" ms, {words}" in over.text, over
    assert over.text.endswith(": rank 1 died (SIGKILL) on node a (every rank has done its first step)"), over
    assert ("its own checkpoint" in over.text) is (step >= 0), over
    assert closed.text.startswith(f"incident 1 ends, all ranks have started over, {words}, after"), closed
    assert "healed" not in str(notes)
    effects = []
    for rank, incarnation in enumerate((2, second)):
        report = rank_report(rank, incarnation, epoch=epoch, step=1, pid=200 + rank, state=RankState.LEFT)
        effects += core.step(at, a.report(report))
    said = [effect.text for effect in effects if isinstance(effect, Note) and effect.kind == "end"]
    assert len(said) == 1 and said[0].startswith(f"this job has started over 1 time: {words}"), said
    ending = f"all ranks have ended in good order after all had started over 1 time, {words}"
    assert effects[-1].reason == ending  # type: ignore[union-attr]


def test_a_replay_knows_what_was_lost_although_no_journal_has_quiet_beats() -> None:
    core, a = manager(2, 1), Node("a")
    journal: list[tuple[int, ManagerEvent]] = []

    def step(at: int, event: ManagerEvent) -> None:
        core.step(at, event)
        journal.extend((at, one) for one in core.to_journal())

    step(SECOND, a.hello())
    step(SECOND, a.report(*(rank_report(rank, step=0, acknowledged=False) for rank in (0, 1)), full=True))
    said = []
    for done in range(1, 8):
        step(SECOND + done * 100 * MS, a.report(*(rank_report(rank, step=done) for rank in (0, 1))))
        said.append(len(journal))
    assert said[0] == said[-1], "beats that only say how far it is are quiet"
    step(NOW, a.report(dead(1, step=-1)))
    step(NOW + MS, a.report(parked(0, NO_SESSION, step=-1)))
    for at in range(NOW, NOW + SECOND, 50 * MS):
        step(at, Tick())
    again = manager(2, 1)
    for at, event in journal:
        again.replay(at, event)
    assert core.facts(NOW)["incidents"] == again.facts(NOW)["incidents"]
    assert again.facts(NOW)["incidents"]["steps_lost"] == 7
    assert Reached(7) in [event for _, event in journal]


def test_a_heal_has_lost_nothing() -> None:
    core, a = running(step=5)
    core.step(NOW, a.report(dead(1)))
    assert core.incidents(NOW)[0]["steps_lost"] is None, "it has not ended"
    assert not core.facts(NOW)["incidents"]["steps_lost"]


def left(rank: int) -> RankReport:
    return rank_report(rank, state=RankState.DEAD, exit_code=0, reason=f"{LEFT_EARLY} 5")


def test_a_rank_that_left_inside_a_step_is_replaced_when_the_others_stay() -> None:
    core, a = running(step=5)
    assert not [e for e in core.step(NOW, a.report(left(1))) if isinstance(e, Tell) and isinstance(e.message, Order)]
    effects = [effect for at in range(NOW, NOW + SECOND, 50 * MS) for effect in core.step(at, Tick())]
    orders = [effect.message for effect in effects if isinstance(effect, Tell) and isinstance(effect.message, Order)]
    assert orders[0].stage is Stage.PARKED
    assert orders[0].reason.startswith(f"rank 1 died ({LEFT_EARLY} 5) on node a, whose agent can start it again")


@pytest.mark.parametrize("second", [left(0), rank_report(0, state=RankState.LEFT)])
def test_when_all_leave_the_job_has_ended_well(second: RankReport) -> None:
    core, a = running(step=5)
    core.step(NOW, a.report(left(1)))
    effects = core.step(NOW + 200 * MS, a.report(second))
    assert isinstance(effects[-1], EndJob) and effects[-1].exit_code == 0, effects
    assert core.facts(NOW)["over"]["exit_code"] == 0


def test_who_dies_of_another_ones_leaving_is_not_waited_with() -> None:
    """No rank is left that could die of the same cause. The reason names the rank that has left."""
    core, a = running(step=-1)
    core.step(NOW, a.report(rank_report(1, state=RankState.LEFT)))
    effects = core.step(NOW + MS, a.report(rank_report(0, state=RankState.DEAD, exit_code=1, reason="it has left")))
    assert isinstance(effects[-1], EndJob) and effects[-1].exit_code == 1, effects
    assert effects[-1].reason.endswith("; rank 1 has left with exit code 0 before and can repair nothing: exit")


@pytest.mark.parametrize(("recover", "spawns", "times"), [(True, False, 1), (True, True, 0), (False, False, 0)])
def test_recovery_that_cannot_be_is_said_once(recover: bool, spawns: bool, times: int) -> None:
    core = manager(2, 2, recover=recover)
    effects = [effect for name in "ab" for effect in core.step(SECOND, Node(name, spawns=spawns).hello())]
    said = [effect.text for effect in effects if isinstance(effect, Note) and effect.kind == "idle"]
    assert len(said) == times, said
    assert all("taskd-run has not started the ranks of node a: they are watched only" in text for text in said)


@pytest.mark.parametrize(
    ("step", "phase", "updates", "done"),
    [
        (-1, Phase.SETUP, -1, 0),
        (6, Phase.BODY, -1, 6),
        (6, Phase.APPLIED, -1, 7),
        (6, Phase.BETWEEN, 5, 7),
        (6, Phase.PARKED, 9, 9),
    ],
)
def test_a_step_counts_once_its_update_is_made(step: int, phase: Phase, updates: int, done: int) -> None:
    assert rank_report(0, step=step, phase=phase, updates=updates).steps_done == done
