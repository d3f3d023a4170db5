"""Pauses in the simulated job: what a rank does about them, an operator who pauses and resumes, and the checks.

The step guard inside is the production one. A rank comes to its next step when it has applied its update. If it may not
begin that step, collectives of its node do not complete. The operator names a step or none, renews, resumes, or
forgets the job. Only tests send the operator on errands. The checks demand:

- *paused-together*: under one order, every rank stands before the ordered step, and nobody has made that step;
- *pause-ends*: no rank stands for longer than the lease that an operator has named last.

They do not know how the core decides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from taskd.core import limits
from taskd.core.events import ErrandWish, PauseWish
from taskd.core.messages import PauseOrder
from taskd.core.types import ErrandKind, PauseKind
from taskd.sim.crowd import Group
from taskd.sim.manager import SimManager
from taskd.sim.setting import Setting
from taskd.sim.watch import Violation

MS = 1_000_000
SECOND = 1_000_000_000
LEASES_S = (1, 5, 20, 60)
DELAY_NS = 3 * SECOND
"""An order may be on its way for this long, in any weather."""


class Pausable(Protocol):
    """A process, with what matters for a pause."""

    rank: int
    incarnation: int
    alive: bool
    group: Group | None
    updates: int
    node: str
    home: Any
    pause: PauseHands


class PauseHands:
    """What one process does about pauses: as worker/pausing.py."""

    def __init__(self, world: Setting, worker: Pausable) -> None:
        self._world, self._worker = world, worker
        self.guard = world.machines.guard()
        self.blocked_since = -1  # since when it does not begin its next step; -1: it may

    def hear(self, order: PauseOrder) -> None:
        """Take an order, and answer."""
        group, now = self._worker.group, self._world.loop.now
        if self.blocked_since < 0 and group is None:
            self.guard.begun = max(self._worker.updates, 0) - 1
        elif self.blocked_since < 0 and group is not None:
            self.guard.begun = group.held_by(self._worker, now)  # type: ignore[arg-type]
        self.guard.ordered(now, order)
        self._world.watch.pause_heard = True
        if self.blocked_since >= 0:
            self.comes()
        elif group is not None and self.guard.holds and self.guard.begun < group.done:
            self._world.loop.at(group.completed_at + self._delay_ns(group), self.comes)
        self._say()

    def completed(self, group: Group) -> None:
        """The group has made a step: this rank comes to the next one when it has applied its update."""
        self._world.loop.after(self._delay_ns(group), self.comes)

    def _delay_ns(self, group: Group) -> int:
        return self._world.crowd.apply_delay_ns(self._worker.rank, group.done)

    def comes(self) -> None:
        """It comes to its next step: it begins that step, or stands before it."""
        group, now = self._worker.group, self._world.loop.now
        if not self._worker.alive or group is None:
            return
        stood = self.blocked_since >= 0
        step = group.held_by(self._worker, now)  # type: ignore[arg-type]
        if self.guard.may_begin(now, step):
            if stood:
                self._world.loop.tell(f"rank {self._worker.rank}", f"goes on with step {step}")
                self._unblock()
        elif not stood:
            self.blocked_since = now
            self._world.crowd.cut(self._worker.node)  # no collective of its group completes
            self._world.loop.after(self._world.rng.randint(0, 20 * MS), self._stands, step)
        if self.blocked_since >= 0 and self.guard.until is not None:
            self._world.loop.at(max(self.guard.until, now), self.comes)
        if self.guard.news():
            self._say()

    def _stands(self, step: int) -> None:
        guard, group = self.guard, self._worker.group
        if not self._worker.alive or self.blocked_since < 0 or guard.stands or group is None or not guard.holds:
            return
        guard.stands = True
        self._world.loop.tell(f"rank {self._worker.rank}", f"stands before step {step}")
        order = guard.order
        if order is not None and order.kind is PauseKind.STAND and (order.step != step or group.done != step):
            text = f"rank {self._worker.rank} stands before step {step} of {group.done}, ordered is {order.step}"
            raise Violation("paused-together", text)
        if guard.news():
            self._say()

    def leaves(self) -> None:
        """A repair takes it along, or its process ends."""
        self.guard.leaves()
        if self.blocked_since >= 0:
            self._unblock()

    def _unblock(self) -> None:
        self.blocked_since = -1
        self._world.crowd.mend(self._worker.node)

    def resumes(self, updates: int) -> None:
        """It has resumed in a group, after this many updates."""
        self.guard.set_back(updates)
        self.comes()

    def _say(self) -> None:
        answer = self.guard.answer(self._worker.rank, self._worker.incarnation, "")
        self._worker.home.worker_says(self._worker, answer)


class SimPauses:
    """The operator of one story who pauses the job, and the checks."""

    def __init__(self, world: Setting, manager: SimManager) -> None:
        self._world, self._manager = world, manager
        self._active = True
        self._requests = 0
        self._wished_at = self._lease_ns = 0

    def completed(self, group: Group) -> None:
        """A group has made a step. No member of it may have been ordered to stand before that one."""
        if not self._world.watch.pause_heard:
            return
        for member in list(group.resumed.values()):
            hands: PauseHands = member.pause  # type: ignore[attr-defined]
            if hands.guard.holds:
                hands.completed(group)

    # ---- the operator -------------------------------------------------------------------------------------------

    def strike(self) -> None:
        """An operator pauses the job. Later the operator renews the pause, resumes the job, or does neither."""
        rng, crowd = self._world.rng, self._world.crowd
        step, lease_ns = -1, rng.choice(LEASES_S) * SECOND
        if rng.random() < 0.4 and crowd.current is not None:
            step = max(crowd.current.done + rng.choice((-1, 1, 3, 10, 30)), 0)
        self._wish(step, lease_ns)
        if rng.random() < 0.3:
            self._world.loop.after(rng.randint(0, lease_ns), self._wish, -1, lease_ns)
        if rng.random() < 0.6:
            self._world.loop.after(rng.randint(0, 15 * SECOND), self._wish, -1, 0)

    def _wish(self, step: int, lease_ns: int) -> None:
        manager = self._manager
        if not manager.alive or not manager.awake or self._world.over() or (lease_ns and not self._active):
            return
        self._requests += 1
        wish = PauseWish(f"request {self._requests}", "sim", step, lease_ns)
        found = manager.core.wish(self._world.loop.now, wish)
        self._world.loop.tell("operator", f"{'pause' if lease_ns else 'resume'} {step}: {found}")
        if isinstance(found, PauseWish):
            if lease_ns:
                self._wished_at, self._lease_ns = self._world.loop.now, lease_ns
            manager.handle(found)

    def errand(self, workers: Iterable[Any]) -> None:
        """An operator wants a rank replaced, or a node other than the first one vacated, whatever else is going on."""
        manager, rng, now = self._manager, self._world.rng, self._world.loop.now
        living = sorted(workers, key=lambda one: (one.rank, one.pid))
        if not living or not self._active or not manager.alive or not manager.awake or self._world.over():
            return
        self._requests += 1
        request, worker, lease_ns = f"request {self._requests}", rng.choice(living), rng.choice(LEASES_S) * SECOND
        wish = ErrandWish(request, "sim", ErrandKind.VACATE, (), worker.node, lease_ns)
        if rng.random() < 0.5 or worker.rank == 0:
            wish = ErrandWish(request, "sim", ErrandKind.RESTART, (worker.rank,), "", lease_ns)
        found = manager.core.wish(now, wish)
        self._world.loop.tell("operator", f"{wish}: {found}")
        if isinstance(found, ErrandWish):
            self._wished_at, self._lease_ns = now, max(self._lease_ns, lease_ns)
            for one in living:
                one.harmed = True  # each of them may be ended for it
            manager.handle(found)

    def stop(self) -> None:
        """The operator wants the job to train. In some stories it has to go on by itself."""
        self._active = False
        if self._world.rng.random() < 0.5:
            self._resume()

    def _resume(self) -> None:
        if self._manager.alive and not self._manager.gone:
            self._wish(-1, 0)
        if self.unwell() and not self._world.over():
            self._world.loop.after(1 * SECOND, self._resume)

    # ---- the checks ---------------------------------------------------------------------------------------------

    def look(self, workers: Iterable[Any]) -> None:
        """Check that nobody stands for longer than the lease."""
        now = self._world.loop.now
        for worker in workers if self._world.watch.pause_heard else ():
            hands: PauseHands = worker.pause
            since = max(hands.blocked_since, self._wished_at)
            if hands.blocked_since >= 0 and worker.alive and now - since > self._lease_ns + DELAY_NS:
                text = f"rank {worker.rank} stands for {(now - hands.blocked_since) // MS} ms"
                raise Violation("pause-ends", f"{text}, the lease was {self._lease_ns // MS} ms")

    def unwell(self) -> str:
        """Say what still keeps ranks from their steps. Empty: nothing."""
        pause = None
        if self._manager.alive:
            pause = self._world.guarded(self._manager.core.pause, self._world.loop.now, who="manager")["pause"]
        return "" if pause is None else f"a pause is {pause['state']} {pause['place']}"


LONGEST_NS = max(LEASES_S) * SECOND + limits.PAUSE_PROMISE_NS
"""No pause of a story is longer than this, once its operator has gone."""
