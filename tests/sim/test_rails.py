"""Rails in the simulator: its faults lead to every possible decision about rails, and every story ends well."""

from __future__ import annotations

from taskd.core.events import RailVerdict, RailWish
from taskd.core.types import RailFinding
from taskd.sim.phases import Play
from taskd.sim.scenario import Options
from taskd.sim.setting import Machines
from taskd.sim.world import World

KINDS = ("rail", "flap", "operator", "unable", "railkill")
STORIES = 40
RARE = {RailFinding.GONE}
"""Needs a minute without any report of a line: tests/scripts/stories/rail_gone.txt."""


def decisions(seed: int) -> set[str]:
    """Return what the manager found about rails in one story, and what an operator wanted. Raises Violation."""
    world = World(Options(4, 1.0, seed, KINDS), Machines())
    Play(world).run()
    found = set()
    for _, event in world.manager.journal:
        if isinstance(event, RailVerdict):
            found.add(event.finding.name)
        elif isinstance(event, RailWish):
            found.add("out" if event.out else "back")
    return found


def test_every_decision_about_rails_is_met_by_a_fault() -> None:
    """Play stories until each decision was met, up to a bound. Each story checks all rules about rails."""
    missing = {finding.name for finding in RailFinding if finding not in RARE} | {"out", "back"}
    for seed in range(STORIES):
        missing -= decisions(seed)
        if not missing:
            return
    raise AssertionError(f"not in {STORIES} stories: {sorted(missing)}")
