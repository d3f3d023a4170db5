"""Faults of rails as they strike: cables that break, flap or lie, ranks that cannot follow, and an operator's orders.

Like the other faults they only do what the real world could do. When the faults stop, every cable is whole again. The
operator then puts back what he took out, as soon as the manager allows it.
"""

from __future__ import annotations

from taskd.core.events import RailWish
from taskd.sim.rails import RailHands
from taskd.sim.world import World

MS = 1_000_000
SECOND = 1_000_000_000
KINDS = ("down", "down", "down", "silent", "slow", "hollow", "stutter", "gone")
RAIL_FAULTS = frozenset({"rail", "flap", "operator", "unable"})
"""Faults that harm no rank, so they do not excuse the end of a rank."""


class RailFaults:
    """Breaks and heals the cables of the world, if it has any."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.active = True
        self._out: set[tuple[str, str]] = set()  # what the operator has taken out

    def _pick(self) -> tuple[str, str]:
        rng = self.world.rng
        assert self.world.cables is not None
        return rng.choice(sorted(self.world.nodes)), rng.choice(self.world.cables.names)

    def breaks(self) -> None:
        """Break one rail of a node for a while; sometimes the same rail of every node, or all rails of one node."""
        world, rng = self.world, self.world.rng
        if world.cables is None:
            return
        node, rail = self._pick()
        how = rng.choice(KINDS)
        draw = rng.random()
        places = [(node, rail)]
        if draw < 0.15:
            places = [(other, rail) for other in sorted(world.nodes)]
        elif draw < 0.3:
            places = [(node, other) for other in world.cables.names]
        lasts = rng.choice((5, 300, 2_000, 10_000, 40_000)) * MS
        for place in places:
            self._break(*place, how)
            world.loop.after(lasts + rng.randint(0, 500) * MS, self._heal, *place)

    def flaps(self) -> None:
        """Break and heal one rail several times, like a loose cable."""
        if self.world.cables is None:
            return
        node, rail = self._pick()
        at = 0
        for _ in range(self.world.rng.randint(3, 12)):
            at += self.world.rng.randint(50, 3_000) * MS
            self.world.loop.after(at, self._break, node, rail, "down")
            at += self.world.rng.randint(50, 3_000) * MS
            self.world.loop.after(at, self._heal, node, rail)

    def operator(self) -> None:
        """An operator takes a rail out, on one node or on all, and puts it back later."""
        if self.world.cables is None:
            return
        node, rail = self._pick()
        where = node if self.world.rng.random() < 0.5 else ""
        if self._wish(rail, where, True):
            self._out.add((rail, where))
            self.world.loop.after(self.world.rng.randint(100, 20_000) * MS, self._put_back, rail, where)

    def hinders(self) -> None:
        """Hinder a rank for a while: it cannot take a rail out or put it back, falsely reports success, or does not
        answer. Then give the manager a reason to send it a rail order."""
        workers = [worker for worker in self.world.workers() if not worker.finished]
        if self.world.cables is None or not workers:
            return
        worker, lasts = self.world.rng.choice(workers), self.world.rng.choice((300, 12_000, 20_000)) * MS
        rails = worker.rails
        rails.hindered_until = self.world.loop.now + lasts
        how = self.world.rng.choice(("deaf", "deaf", "unable", "stuck", "false"))
        rails.deaf, rails.false = how == "deaf", how == "false"
        rails.unable = "unsupported: a fault" if how == "unable" else ""
        rails.stuck = "no-op: a fault" if how == "stuck" else ""
        self.world.loop.tell(str(worker), f"is {how} to rail orders")
        self.world.loop.after(lasts, self._let_follow, rails)
        reason = self.world.rng.choice((self.breaks, self.operator))
        reason()

    def _let_follow(self, rails: RailHands) -> None:
        rails.deaf, rails.false, rails.unable, rails.stuck = False, False, "", ""
        rails.out = rails.wanted
        rails.hindered_until = min(rails.hindered_until, self.world.loop.now)

    def _put_back(self, rail: str, where: str) -> None:
        if (rail, where) in self._out:
            self._wish(rail, where, False)
            self._out.discard((rail, where))

    def _wish(self, rail: str, where: str, out: bool) -> bool:
        manager = self.world.manager
        if not manager.alive or not manager.awake or self.world.over():
            return False
        wish = manager.core.rail_wish(rail, where, out)
        self.world.loop.tell("operator", f"rail {'out' if out else 'back'} {rail} {where}: {wish}")
        if isinstance(wish, RailWish):
            manager.handle(wish)
        return isinstance(wish, RailWish)

    def _break(self, node: str, rail: str, how: str) -> None:
        if self.active and self.world.cables is not None:
            self.world.loop.tell("cable", f"{rail} of {node} is {how}")
            self.world.cables.breaks(node, rail, how, self.world.loop.now)

    def _heal(self, node: str, rail: str) -> None:
        if self.world.cables is not None:
            self.world.cables.heals(node, rail, self.world.loop.now)

    def stop(self) -> None:
        """Heal every cable. Put the rails that are out by order back, one after the other."""
        self.active = False
        if self.world.cables is not None:
            for node, rail in list(self.world.cables.broken):
                self._heal(node, rail)
            for worker in self.world.workers():
                self._let_follow(worker.rails)
            self._put_all_back()

    def _put_all_back(self) -> None:
        if self.world.over():
            return
        out = [row for row in self.world.manager.rails() if row["use"] == "out"] if self.world.manager.alive else []
        for row in out:
            self._wish(row["rail"], "", False)
        self.world.loop.after(1 * SECOND, self._put_all_back)
