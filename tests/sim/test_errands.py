"""Errands in the simulator: whatever else goes wrong, ranks are replaced and nodes vacated by all rules of a repair."""

from __future__ import annotations

from collections import Counter

from taskd.core.events import ErrandVerdict
from taskd.core.types import ErrandFinding
from taskd.sim.phases import Play
from taskd.sim.scenario import Options
from taskd.sim.setting import Machines
from taskd.sim.world import World

SECOND = 1_000_000_000
STORIES = 60
KINDS = (("kill", "pause"), ("manager", "kill"), ("node", "agent"), ("pause", "manager", "setup"), ())
RARE = {ErrandFinding.BACK}
"""The spare is lost in the middle: tests/scripts/stories/errand_drain_spare_lost.txt."""


def findings(seed: int) -> Counter[ErrandFinding]:
    """Play one story with an errand every few seconds. Return what the manager found. Raises Violation."""
    world = World(Options((4, 8, 2, 16)[seed % 4], 0.5, seed, KINDS[seed % len(KINDS)]), Machines())
    for second in range(5, 30, 6):
        world.loop.at(second * SECOND, lambda: world.pauses.errand(world.workers()))
    Play(world).run()
    return Counter(event.finding for _, event in world.manager.journal if isinstance(event, ErrandVerdict))


def test_every_decision_about_an_errand_is_met() -> None:
    """Play stories until each decision was met, up to a bound. Each story checks all rules."""
    missing = set(ErrandFinding) - RARE
    for seed in range(STORIES):
        missing -= findings(seed).keys()
        if not missing and seed >= 20:
            return
    raise AssertionError(f"not in {STORIES} stories: {sorted(finding.name for finding in missing)}")
