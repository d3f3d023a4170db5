"""What is said aloud when all ranks start over, and when one was replaced: who, why, what it costs, what would help."""

from __future__ import annotations

import pytest

from taskd.core.effects import EndJob, Note, Tell
from taskd.core.events import Tick
from taskd.core.limits import MS, SECOND
from taskd.core.manager import Manager
from taskd.core.messages import Order, RankReport
from taskd.core.repair.notices import AGAIN, CURE, NO_SESSION
from taskd.core.types import Phase, RankState, Stage
from taskd.core.words import LEFT_EARLY
from tests.core.builders import Node, manager, rank_report

NOW = 2 * SECOND


def running(step: int, max_restarts: int = 3) -> tuple[Manager, Node]:
    """One node with two ranks that are in this step; before 0: in their set-up."""
    core, a = manager(2, 1, max_restarts=max_restarts), Node("a")
    core.step(SECOND, a.hello())
    phase = Phase.BODY if step >= 0 else Phase.SETUP
    ranks = (rank_report(rank, step=step, phase=phase, acknowledged=False) for rank in (0, 1))
    core.step(SECOND, a.report(*ranks, full=True))
    return core, a


def dead(rank: int, incarnation: int = 1) -> RankReport:
    return rank_report(rank, incarnation, state=RankState.DEAD, exit_code=-9)


def parked(rank: int, reason: str) -> RankReport:
    return rank_report(rank, epoch=2, stage=Stage.PARKED, ok=False, reason=reason)


def starting_over(core: Manager) -> Order:
    """The order by which all begin anew, once what happens together was gathered."""
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
    assert told.startswith(f"rank 1 died (SIGKILL) on node a; no survivor holds a whole state ({reason}). {AGAIN} ")
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


def test_an_incident_in_which_all_started_over_is_never_healed() -> None:
    core, a = running(step=5)
    core.step(NOW, a.report(dead(1)))
    core.step(NOW + MS, a.report(parked(0, NO_SESSION)))
    epoch = starting_over(core).epoch
    at = NOW + 3 * SECOND
    notes: list[str] = []
    for incarnations, step in (((2, 3), 0), ((2, 3), 1)):
        for rank, incarnation in enumerate(incarnations):
            report = rank_report(rank, incarnation, epoch=epoch, step=step, pid=200 + rank)
            notes += [e.text for e in core.step(at, a.report(report)) if isinstance(e, Note)]
    (incident,) = core.incidents(at)
    assert (incident["strategy"], incident["outcome"]) == ("respawn", "started over"), notes
    assert notes[-1].startswith("incident 1 ends, all ranks have started over, after") and "healed" not in str(notes)
    effects = []
    for rank, incarnation in enumerate((2, 3)):
        report = rank_report(rank, incarnation, epoch=epoch, step=1, pid=200 + rank, state=RankState.LEFT)
        effects += core.step(at, a.report(report))
    assert effects[-1].reason == "all ranks have ended in good order after all had started over 1 time"  # type: ignore[union-attr]


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
    """Nobody is left who could die of the same cause, and who has left is named."""
    core, a = running(step=-1)
    core.step(NOW, a.report(rank_report(1, state=RankState.LEFT)))
    effects = core.step(NOW + MS, a.report(rank_report(0, state=RankState.DEAD, exit_code=1, reason="it has left")))
    assert isinstance(effects[-1], EndJob) and effects[-1].exit_code == 1, effects
    assert effects[-1].reason.endswith("; rank 1 has left with exit code 0 before and can repair nothing: exit")
