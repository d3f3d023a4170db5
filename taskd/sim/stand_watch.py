"""Ranks that stand still for a while in the simulated job, and the checks of what the manager must and must not report.

A rank that stands still keeps the others waiting in the step's collective. If it is ordered to park in a repair, it
does so. (A rank that cannot park is the fault `stuck`.) The checks know which ranks stand still. They demand four
things. A hang is reported only if a rank stands still. No other rank is named. A rank that is stopped in an otherwise
healthy job is named soon. Only a stopped rank is given up. It does NOT show anything to agents (stands.py).
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
from taskd.sim.worker import RAISED, REFUSED, SimWorker

MS = 1_000_000
SECOND = 1_000_000_000
NAMED_NS = 15 * SECOND
"""A stopped rank is named within this time, in any weather. All nodes have to be heard, and each may be unheard for
some seconds."""
BEHIND_NS = 6 * SECOND
"""The manager may still report an old state for this long, for the same reason."""
STEADY_STEPS = 2 * limits.STILL_WARM_STEPS
OUTSIDE = (Doing.STOPPED, Doing.TRACED)
KINDS = (*OUTSIDE, Doing.STOPPED, Doing.SLEEPS, Doing.BLOCKED, Doing.HOLDS_GIL, Doing.WORKS)


class StandWatch:
    """The ranks that stand still, and the ranks that the manager has named."""

    def __init__(
        self, world: Setting, manager: SimManager, nodes: Mapping[str, SimNode], trouble: Callable[[], int]
    ) -> None:
        """`trouble`: how often something has gone wrong so far."""
        self.world, self.manager, self.nodes, self._trouble = world, manager, nodes, trouble
        self._standing: dict[int, SimWorker] = {}  # by process number
        self._last_at = -BEHIND_NS  # when a rank has last stopped standing still
        self._named: set[int] = set()

    # ---- the fault ---------------------------------------------------------------------------------------------

    def strike(self, victim: SimWorker) -> None:
        """This rank stands still from now on."""
        world, group = self.world, victim.group
        if group is None or not group.running() or group is not world.crowd.current or victim.pid in self._standing:
            return
        now, rng = world.loop.now, world.rng
        alone = not self._standing and now - self._last_at > BEHIND_NS  # else part of an earlier hang
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
        """Whether the job is otherwise healthy, and its manager has known it for long enough."""
        crowd = self.world.crowd
        lived_ns = self.world.loop.now - max(self.manager.began_ns, crowd.began_at)
        long = lived_ns > STEADY_STEPS * crowd.step_ms * MS and group.done - group.base > STEADY_STEPS
        return long and self._heard() and not self.manager.open_incidents()

    def _heard(self) -> bool:
        """Whether the manager hears every node."""
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
        """Let all ranks go on."""
        for pid in list(self._standing):
            self._goes_on(pid)

    # ---- the checks --------------------------------------------------------------------------------------------

    def verdict(self, event: ManagerEvent) -> None:
        """Check a verdict that the manager has journaled."""
        if not isinstance(event, HangVerdict) or event.finding is HangFinding.GOES_ON:
            return
        if event.finding is HangFinding.GIVEN_UP:
            self._check_given_up(event)
            return
        self._named.update(event.ranks)
        members = self.world.crowd.current.members.values() if self.world.crowd.current is not None else ()
        standing = {worker.rank for worker in self._standing.values()}
        standing |= {one.rank for one in members if isinstance(one, SimWorker) and one.plan in (RAISED, REFUSED)}
        if self.world.loop.now - self._last_at < BEHIND_NS:
            return  # the news that a rank has gone on is still on its way
        if not standing or not set(event.ranks) <= standing:
            raise Violation("hang-true", f"ranks {sorted(standing)} stand still, and it is said: {event.reason}")

    def _check_given_up(self, event: HangVerdict) -> None:
        """Check that a rank that is given up was stopped."""
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
        if self.world.watch.pause_heard:
            return  # while an operator pauses the job, nobody is named
        if self._trouble() == trouble and self._heard() and not self.world.over():
            seconds = NAMED_NS // SECOND
            raise Violation("hang-named", f"{worker} is stopped for {seconds} s, and nobody says so")
