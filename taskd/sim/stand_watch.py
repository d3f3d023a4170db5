"""Ranks that stand still in the simulated job, for a while: who does, and what must be said of it, and what must not.

Whoever stands still keeps the others waiting in the step's collective. One that is ordered to park in a repair goes on:
one that cannot is the fault `stuck`. The checks know who stands: a hang is said only where somebody does, nobody else
is named, one that is stopped in a job that nothing else troubles is named soon, and nobody else is given up. It does
NOT show anything to agents (stands.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taskd.core import limits
from taskd.core.events import HangVerdict, ManagerEvent
from taskd.core.types import Cover, Doing, HangFinding
from taskd.sim.crowd import Group, Stand
from taskd.sim.manager import SimManager
from taskd.sim.node import SimNode
from taskd.sim.setting import Setting
from taskd.sim.stands import MOST_RANKS, comes
from taskd.sim.watch import Violation
from taskd.sim.worker import RAISED, SimWorker

MS = 1_000_000
SECOND = 1_000_000_000
NAMED_NS = 15 * SECOND
"""A rank that is stopped is named within this, in any weather: each node has to be heard, and each may be unheard for
some seconds."""
BEHIND_NS = 6 * SECOND
"""What was so is still said so long after, for the same reason."""
STEADY_STEPS = 2 * limits.STILL_WARM_STEPS
OUTSIDE = (Doing.STOPPED, Doing.TRACED)
KINDS = (*OUTSIDE, Doing.STOPPED, Doing.SLEEPS, Doing.BLOCKED, Doing.HOLDS_GIL, Doing.WORKS)


class StandWatch:
    """Who stands still, and who was said to."""

    def __init__(
        self, world: Setting, manager: SimManager, nodes: Mapping[str, SimNode], trouble: Callable[[], int]
    ) -> None:
        """`trouble`: how often anything has gone wrong so far."""
        self.world, self.manager, self.nodes, self._trouble = world, manager, nodes, trouble
        self._standing: dict[int, SimWorker] = {}  # by process
        self._last_at = -BEHIND_NS  # when somebody has gone on last
        self._named: set[int] = set()

    # ---- the fault ---------------------------------------------------------------------------------------------

    def strike(self, victim: SimWorker) -> None:
        """This rank stands still from now on."""
        world, group = self.world, victim.group
        if group is None or not group.running() or group is not world.crowd.current or victim.pid in self._standing:
            return
        now, rng = world.loop.now, world.rng
        alone = not self._standing and now - self._last_at > BEHIND_NS  # else it belongs to a hang that was said
        doing = rng.choice(KINDS) if now < comes(group, victim.rank) else Doing.STOPPED
        duration_ns = rng.choice((500, 3_000, 8_000, 20_000, 70_000)) * MS
        world.loop.tell(f"rank {victim.rank}", f"stands still for {duration_ns // MS} ms: {doing.name}")
        self._standing[victim.pid] = victim
        victim.stand = Stand(doing, now)
        world.crowd.cut(victim.node)
        world.loop.after(duration_ns, self._goes_on, victim.pid)
        small = world.crowd.world_size <= MOST_RANKS
        if doing in OUTSIDE and duration_ns > NAMED_NS and small and alone and self._steady(group):
            self._named.discard(victim.rank)
            world.loop.after(NAMED_NS, self._check_named, victim, self._trouble())

    def _steady(self, group: Group) -> bool:
        """Nothing else troubles the job, and its manager has known it for long."""
        crowd = self.world.crowd
        lived_ns = self.world.loop.now - max(self.manager.began_ns, crowd.began_at)
        long = lived_ns > STEADY_STEPS * crowd.step_ms * MS and group.done - group.base > STEADY_STEPS
        return long and self._heard() and not self.manager.open_incidents()

    def _heard(self) -> bool:
        """The manager hears every node."""
        manager = self.manager
        runs = manager.alive and manager.awake
        return runs and all(node.well_heard() for node in self.nodes.values() if node.workers)

    def _goes_on(self, pid: int) -> None:
        worker = self._standing.pop(pid, None)
        if worker is not None:
            self._last_at = self.world.loop.now
            worker.stand = None
            self.world.crowd.mend(worker.node)

    def stop(self) -> None:
        """All go on."""
        for pid in list(self._standing):
            self._goes_on(pid)

    # ---- the checks --------------------------------------------------------------------------------------------

    def verdict(self, event: ManagerEvent) -> None:
        """The manager has written this down."""
        if not isinstance(event, HangVerdict) or event.finding is HangFinding.GOES_ON:
            return
        if event.finding is HangFinding.GIVEN_UP:
            self._check_given_up(event)
            return
        self._named.update(event.ranks)
        members = self.world.crowd.current.members.values() if self.world.crowd.current is not None else ()
        standing = {worker.rank for worker in self._standing.values()}
        standing |= {one.rank for one in members if isinstance(one, SimWorker) and one.plan == RAISED}
        if self.world.loop.now - self._last_at < BEHIND_NS:
            return  # what has just gone on is still on its way
        if not standing or not set(event.ranks) <= standing:
            raise Violation("hang-true", f"ranks {sorted(standing)} stand still, and it is said: {event.reason}")

    def _check_given_up(self, event: HangVerdict) -> None:
        """Whoever is replaced was stopped."""
        for rank in event.ranks:
            if self.world.scenario.cover is not Cover.HEALED:
                raise Violation("hang-true", f"rank {rank} is given up, and all start over for it")
            still = [one for one in self._standing.values() if one.rank == rank and one.stand is not None]
            doing = {one.stand.doing for one in still if one.stand is not None}
            for one in still:
                one.harmed = True  # so that it may be ended
            if self.world.loop.now - self._last_at >= BEHIND_NS and Doing.STOPPED not in doing:
                raise Violation("hang-true", f"rank {rank} is given up, and does {sorted(doing) or 'as it should'}")

    def _check_named(self, worker: SimWorker, trouble: int) -> None:
        if worker.pid not in self._standing or worker.rank in self._named or len(self._standing) > 1:
            return
        if self._trouble() == trouble and self._heard() and not self.world.over():
            seconds = NAMED_NS // SECOND
            raise Violation("hang-named", f"{worker} is stopped for {seconds} s, and nobody says so")
