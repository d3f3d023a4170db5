"""Pauses in the simulator: every decision about a pause is met, and broken pauses are caught by the right rule."""

from __future__ import annotations

import pytest

from taskd.core.events import PauseVerdict, PauseWish
from taskd.core.pause.guard import StepGuard
from taskd.core.pause.messages import PauseOrder
from taskd.core.types import PauseFinding, PauseKind
from taskd.sim.phases import Play
from taskd.sim.scenario import Options
from taskd.sim.setting import Machines
from taskd.sim.story import Result, simulate
from taskd.sim.world import World
from tests.patience import BUILD_S

pytestmark = pytest.mark.limit(BUILD_S)
KINDS = (*["pause"] * 8, "kill", "manager", "partition")
"""Most faults are pauses: the others are drawn more often."""
STORIES = 60
RARE = {PauseFinding.UNDONE}
"""The training ends, or no step is found: tests/scripts/stories/pause_ended.txt and pause_deaf.txt."""


def decisions(seed: int) -> set[str]:
    """Return what the manager found about pauses in one story, and what an operator wanted. Raises Violation."""
    world = World(Options(4, 1.0, seed, KINDS), Machines())
    Play(world).run()
    found = set()
    for _, event in world.manager.journal:
        if isinstance(event, PauseVerdict):
            found.add(event.finding.name)
        elif isinstance(event, PauseWish):
            found.add("pause" if event.lease_ns else "resume")
    return found


def test_every_decision_about_a_pause_is_met() -> None:
    """Play stories until each decision was met, up to a bound. Each story checks all rules about pauses."""
    missing = {finding.name for finding in PauseFinding if finding not in RARE} | {"pause", "resume"}
    for seed in range(STORIES):
        missing -= decisions(seed)
        if not missing:
            return
    raise AssertionError(f"not in {STORIES} stories: {sorted(missing)}")


def test_without_other_faults_pauses_come_about() -> None:
    """Nothing else goes wrong, so all ranks stand if the operator waits for it, and no rank is ever replaced."""
    stood = 0
    for seed in range(12):
        world = World(Options(8, 0.5, seed, ("pause",)), Machines())
        Play(world).run()
        findings = [event.finding for _, event in world.manager.journal if isinstance(event, PauseVerdict)]
        assert PauseFinding.WAITS not in findings and PauseFinding.FORGOTTEN not in findings, findings
        assert not world.manager.incidents()
        stood += findings.count(PauseFinding.STANDS)
    assert stood >= 6, stood


class Endless(StepGuard):
    """Stands on, whatever the lease says, and whoever resumes the job."""

    def ordered(self, now: int, order: PauseOrder) -> None:
        if not self.stands or order.kind is not PauseKind.FREE:
            super().ordered(now, order)

    def may_begin(self, now: int, step: int) -> bool:
        self.until = None
        free = super().may_begin(now, step)
        self.until = None
        return free


class Late(StepGuard):
    """Stands one step later than it was told to."""

    def ordered(self, now: int, order: PauseOrder) -> None:
        super().ordered(now, order)
        self._limit += self._limit >= 0 and order.step >= 0


def first_complaint(machines: Machines, kinds: tuple[str, ...]) -> Result:
    """Play stories until one breaks a rule about pauses."""
    others = set()
    for seed in range(STORIES):
        result = simulate(Options(8, 0.5, seed, kinds), machines)
        if result.rule in ("paused-together", "pause-ends"):
            return result
        others.add(result.rule or "nothing")
    pytest.fail(f"no rule about pauses complained; these did: {sorted(others)}")


def test_a_rank_that_stands_without_end_is_caught() -> None:
    assert first_complaint(Machines(guard=Endless), ("pause", "manager")).rule == "pause-ends"


def test_a_rank_that_passes_the_step_is_caught() -> None:
    assert first_complaint(Machines(guard=Late), ("pause",)).rule == "paused-together"
