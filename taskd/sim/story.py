"""Plays one story and returns how it went: `simulate(options)` returns a Result in any case.

A violation ends the story. The result then holds the rule, the sentence, the last lines before it, and the command that
plays the story again. It prints nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from taskd.sim.phases import Play
from taskd.sim.scenario import Options
from taskd.sim.setting import Machines
from taskd.sim.watch import RULES, Violation
from taskd.sim.world import World

KEPT_STORY = 60
"""How many last lines of the story come with a failure."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one story went."""

    options: Options
    ok: bool
    summary: dict[str, Any]
    rule: str = ""
    text: str = ""
    story: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The result for `--json`. The same options give the same result on every machine."""
        failed = {"rule": self.rule, "means": RULES.get(self.rule, ""), "text": self.text, "story": self.story}
        return {
            "ok": self.ok,
            "command": self.options.command(),
            **self.summary,
            **({} if self.ok else {"violation": failed}),
        }

    def complaint(self) -> str:
        """The violated rule, the last lines, and the command to play the story again."""
        means = f" ({RULES[self.rule]})" if self.rule in RULES else ""
        lines = [
            f"{self.rule}{means}",
            *self.story,
            f"violated: {self.text}",
            f"play it again: {self.options.command()}",
        ]
        return "\n".join(lines)


def simulate(options: Options, machines: Machines | None = None) -> Result:
    """Play the story of these options, with the production core unless a test brings a broken one."""
    world = World(options, machines or Machines())
    try:
        Play(world).run()
    except Violation as violation:
        story = world.loop.story(KEPT_STORY)
        return Result(options, False, summary(world), violation.rule, violation.text, story)
    return Result(options, True, summary(world))


def summary(world: World) -> dict[str, Any]:
    """The figures of a story, in the order in which they are shown."""
    scenario, manager, traffic = world.scenario, world.manager, world.network.traffic
    heals_ms = [heal_ns / 1e6 for heal_ns in world.crowd.heals_ns]
    incidents = [] if not manager.alive else manager.core.incidents(world.loop.now)
    return {
        "ranks": scenario.options.ranks,
        "seed": scenario.options.seed,
        "nodes": f"{scenario.nodes} + {scenario.spares}",
        "agents": "launchers" if scenario.launches else "beside another launcher",
        "weather": scenario.weather.name,
        "virtual_s": round(world.loop.now / 1e9, 3),
        "events": world.loop.events,
        "actions_checked": world.watch.actions,
        "faults": {kind: world.struck[kind] for kind in sorted(world.struck)},
        "steps": world.crowd.steps,
        "updates": world.watch.best,
        "incidents": len(incidents),
        "outcomes": count(incident["outcome"] for incident in incidents),
        "strategies": count(incident["strategy"] for incident in incidents),
        "heals": len(heals_ms),
        "heal_p50_ms": percentile(heals_ms, 50),
        "heal_p99_ms": percentile(heals_ms, 99),
        "messages": traffic.sent,
        "messages_to_agents": {name: manager.told[name] for name in sorted(manager.told)},
        "datagrams_lost": traffic.lost + traffic.cut_off,
        "datagrams_doubled": traffic.doubled + traffic.replayed,
        "ended": None if world.ended is None else f"{world.ended.exit_code}: {world.ended.reason}",
        "fingerprint": f"{world.rng.getrandbits(64):016x}",
    }


def count(words: Any) -> dict[str, int]:
    """How often each word occurs, in alphabetical order."""
    counts: dict[str, int] = {}
    for word in sorted(words):
        counts[word] = counts.get(word, 0) + 1
    return counts


def percentile(values: Sequence[float], percent: int) -> float | None:
    """The smallest of the values such that at least `percent` % of all values are not larger."""
    if not values:
        return None
    return round(sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)], 1)
