"""The rules about rails that must hold in every story, checked from outside the core.

- *rails-obeyed*: a rank that orders can reach leaves a rail that is ordered out.
- *rails-steady*: a rail that was lent comes back no faster than its back-off allows.
- *rails-return*: when all cables are whole again, every rail comes back, and its incident closes.

It does not know how the core decides. It reads only what operators are shown.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping

from taskd.core import limits
from taskd.core.messages import RailOrder
from taskd.sim.manager import SimManager
from taskd.sim.node import SimNode
from taskd.sim.rails import Cables
from taskd.sim.watch import Violation

MS = 1_000_000
SECOND = 1_000_000_000
TOLD_NS = 10 * SECOND
"""A rank in reach has got an order after this time, in any weather."""
PROVED = "have proved themselves"
WINDOW_NS = 60 * SECOND
MOST_RETURNS = 6
"""2 + 4 + 8 + 16 + 32 seconds of back-off leave no room for more within the window."""


class RailChecks:
    """Records orders as they are given, and checks the ranks every second."""

    def __init__(self, manager: SimManager, nodes: Mapping[str, SimNode], cables: Cables | None) -> None:
        self.world, self._manager, self._nodes, self._cables = manager.world, manager, nodes, cables
        self._out_since: dict[tuple[str, str], int] = {}
        self._returns: dict[tuple[str, str], deque[int]] = defaultdict(deque)

    def manager_restarted(self) -> None:
        """The manager may have lost what it knew of a rail's past."""
        self._returns.clear()
        self._out_since.clear()

    def ordered(self, node: str, order: RailOrder) -> None:
        """The manager sends a node a rail order."""
        now = self.world.loop.now
        for key in [key for key in self._out_since if key[0] == node and key[1] not in order.out]:
            since = self._out_since.pop(key)
            if order.reason.endswith(PROVED) and order.reason.startswith(f"rail {key[1]}:"):
                self._returned(key, now - since, now)
        for rail in order.out:
            self._out_since.setdefault((node, rail), now)

    def _returned(self, key: tuple[str, str], rested_ns: int, now: int) -> None:
        self.world.watch.actions += 1
        if rested_ns < limits.RAIL_QUIET_NS:
            raise Violation("rails-steady", f"rail {key[1]} of {key[0]} is back after {rested_ns // MS} ms")
        returns = self._returns[key]
        returns.append(now)
        while returns[0] < now - WINDOW_NS:
            returns.popleft()
        if len(returns) > MOST_RETURNS:
            raise Violation("rails-steady", f"rail {key[1]} of {key[0]} came back {len(returns)} times in a minute")

    def look(self) -> None:
        """Check that every rank that can know of an order follows it."""
        world = self.world
        manager = self._manager
        if self._cables is None or not manager.alive or not manager.awake or world.over():
            return
        for row in manager.rails():
            node = self._nodes[row["node"]]
            out = row["use"] in ("out", "borrowed")
            if not out or row["age_ms"] * MS < TOLD_NS or node.core is None or node.out_of_reach():
                continue
            for worker in node.workers.values():
                known = worker.acknowledged and world.loop.now - worker.born_at > TOLD_NS
                free = world.loop.now - worker.rails.hindered_until > 2 * TOLD_NS  # it is asked again after a pause
                if known and free and not worker.finished and row["rail"] not in worker.rails.out:
                    text = f"{worker} still uses rail {row['rail']}, which is {row['use']} for {row['age_ms']} ms"
                    raise Violation("rails-obeyed", text)
                world.watch.actions += 1

    def unwell(self) -> str:
        """After the last fault: a rail that is not back. Empty: all are."""
        if self._cables is None or not self._manager.alive:
            return ""
        for row in self._manager.rails():
            if row["use"] != "in use" or row["state"] != "up":
                return f"rail {row['rail']} of {row['node']} is {row['state']} and {row['use']}"
        return ""
