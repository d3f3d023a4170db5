"""The phases of a story, and what each of them demands of the job.

The first phase checks safety: faults strike as planned while the checkers watch. Then faults stop and everything that
can heal is healed. Now the job must train again, or must have ended for a reason that the faults justify. Last comes a
quiet time in which a healthy job sends almost no messages. For some seeds the orderly end of training follows.
"""

from __future__ import annotations

from typing import Any

from taskd.core import limits
from taskd.core.events import Said
from taskd.core.worker import WorkerState
from taskd.sim.faults import Faults
from taskd.sim.network import CALM
from taskd.sim.watch import Violation
from taskd.sim.world import World

MS = 1_000_000
SECOND = 1_000_000_000

START_NS = 20 * SECOND
"""All set-ups of a healthy start end well within this time."""
QUIET_NS = 5 * SECOND
END_NS = 60 * SECOND
RETURN_NS = 3 * SECOND
"""Within this time, everything that comes back after the faults is there."""
LEASE_NS = limits.ABANDONED_NS + limits.STOP_GRACE_NS + RETURN_NS
"""Within this time, ranks that wait for a manager that never comes back have ended."""
RECHECK_NS = 100 * MS
STEPS_AFTER = 3
"""After this many steps since the faults, the job counts as training again."""
RUNGS = 3
"""The rungs of the ladder: in place or respawn, other node, exit."""
ATTEMPT_NS = (
    limits.DEADLINE_SETUP_NS
    + limits.DEADLINE_REBUILD_NS
    + limits.DEADLINE_RESTORE_NS
    + limits.DEADLINE_RESUME_NS
    + limits.DEADLINE_SPARE_NS
)
STUCK_NS = limits.LONGEST_STAGE_NS
"""An attempt waits this much longer for a hanging survivor that may hold the last whole state."""
COMES_UP_NS = 10 * SECOND
"""Within this time, a newcomer shows its last work before the set-up. Each such sign starts its allowance again."""
PHASE_NS = {
    "spare": limits.DEADLINE_SPARE_NS,
    "quiesce": limits.DEADLINE_SETUP_NS,
    "set-up": limits.DEADLINE_SETUP_NS + COMES_UP_NS,
    "rebuild": limits.DEADLINE_REBUILD_NS,
    "restore": limits.DEADLINE_RESTORE_NS,
    "resume": limits.DEADLINE_SETUP_NS,
    "redo": limits.DEADLINE_REDO_NS,
}
"""How long each phase of an incident may take. A quiesce waits for newcomers' set-ups, and so does a start of all."""
SLACK_NS = 2 * SECOND
"""A deadline is noticed at the next tick, and the phases are checked once a second."""


class Play:
    """One world's story from start to end."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._faults = Faults(world)
        self._phases_ms: dict[tuple[int, int], int] = {}  # durations a second ago, by incident and place

    def run(self) -> None:
        """Play the whole story. Raises the first Violation."""
        self.world.start()
        self._watch_budgets()
        self.world.loop.run(START_NS if not self.world.scenario.faults else 0, self.world.crowd.training)
        self.world.loop.run(self.world.loop.now + self.world.scenario.duration_ns, self.world.over)
        self._calm_down()
        if self.world.manager.gone and not self.world.over():
            self._nobody_waits()
            return
        if self._forgotten:
            return
        self._live()
        if not self.world.over():
            self._quiet()
        if not self.world.over() and self.world.scenario.ends:
            self._end()

    @property
    def _forgotten(self) -> bool:
        """Whether the manager has lost its journal, and nobody is left who could tell it of the job."""
        world = self.world
        left = world.returning or world.workers() or any(node.core is not None for node in world.nodes.values())
        return not left and not any(isinstance(event, Said) for _, event in world.manager.journal)

    @property
    def _stuck_ns(self) -> int:
        """How much longer the deadlines of an attempt are, since a survivor may be stuck."""
        return STUCK_NS if self.world.struck["stuck"] else 0

    @property
    def _budget_ns(self) -> int:
        """The sum of an attempt's deadlines, times the attempts: no incident may stay open longer."""
        attempts = RUNGS * (limits.MAX_ATTEMPTS + 1)
        return attempts * (ATTEMPT_NS + self._stuck_ns) + limits.DEADLINE_REDO_NS

    @property
    def _liveness_ns(self) -> int:
        """How long the job may take to recover. Without new faults a repair misses its deadlines once at most."""
        return limits.SILENCE_ALONE_NS + 2 * ATTEMPT_NS + self._stuck_ns

    def _watch_budgets(self) -> None:
        """Check every second that no incident is open longer than its budget, and that no list is too long."""
        self.world.pauses.look(self.world.workers())
        if self.world.manager.alive:
            self.world.manager.check_bounds()
            self.world.rail_checks.look()
            for incident in self.world.manager.open_incidents():
                if incident["kind"] == "rail":
                    continue  # open as long as the rail is lost
                age_ns = incident["duration_ms"] * MS
                if age_ns > self._budget_ns:
                    raise Violation("budget", f"incident {incident['id']} is open for {age_ns / 1e9:.0f} s")
                self._check_phases(incident)
        if not self.world.over():
            self.world.loop.after(1 * SECOND, self._watch_budgets)

    def _check_phases(self, incident: dict[str, Any]) -> None:
        """Check that no phase takes longer than its deadline. A new manager starts the deadline again, and its sleep
        does not count. A finished phase is skipped: it is unknown how much of it belongs to the present manager."""
        lived_ns = self.world.loop.now - self.world.manager.began_ns
        for number, phase in enumerate(incident["phases"]):
            before = self._phases_ms.get((incident["id"], number))
            self._phases_ms[incident["id"], number] = phase["ms"]
            if before == phase["ms"]:
                continue
            allowed_ns = PHASE_NS.get(phase["name"], self._budget_ns)
            if phase["name"] == "quiesce":
                allowed_ns = max(allowed_ns, self._stuck_ns)
            most_ns = allowed_ns + self.world.manager.away_ns + SLACK_NS
            if min(phase["ms"] * MS, lived_ns) > most_ns:
                raise Violation("budget", f"incident {incident['id']} is in {phase['name']} for {phase['ms']} ms")

    def _calm_down(self) -> None:
        self.world.loop.tell("faults", "stop; what can heal is healed")
        self.world.network.weather = CALM
        self._faults.stop()

    def _live(self) -> None:
        """Demand that the job trains again with no incident open, or that it is over and its agents have left."""
        self.world.loop.run(self.world.loop.now + RETURN_NS, self.world.over)
        crowd, began, deadline = self.world.crowd, self.world.crowd.steps, self.world.loop.now + self._liveness_ns
        while self.world.loop.now < deadline:
            if self.world.over():
                return self._all_leave()
            trains = crowd.training() and crowd.steps >= began + STEPS_AFTER and not self.world.proofs.unsaid()
            well = not self.world.rail_checks.unwell() and not self.world.pauses.unwell()
            if trains and well and not self.world.manager.open_incidents():
                return None
            self.world.loop.run(min(self.world.loop.now + RECHECK_NS, deadline), self.world.over)
        rail, unlike = self.world.rail_checks.unwell(), self.world.proofs.unsaid()
        if unlike:
            raise Violation("proof-found", f"{self._liveness_ns // SECOND} s after the last fault: {unlike}")
        if paused := self.world.pauses.unwell():
            raise Violation("pause-ends", f"{self._liveness_ns // SECOND} s after the last fault: {paused}")
        rule, standing = ("rails-return", rail) if rail and crowd.training() else ("live", self._standing())
        raise Violation(rule, f"{self._liveness_ns // SECOND} s after the last fault: {standing}")

    def _nobody_waits(self) -> None:
        """Without a manager the job may train or end. But no rank may stay in a state that only a manager can end."""
        self.world.loop.run(self.world.loop.now + LEASE_NS)
        for worker in self.world.workers():
            if worker.pause.blocked_since >= 0:
                raise Violation("pause-ends", f"{worker} stands without a manager")
            if worker.core.state is not WorkerState.RUNNING and not worker.harmed:
                state = worker.core.state.name
                raise Violation("lease", f"{worker} is {state}, {LEASE_NS // SECOND} s after the last of the managers")

    def _standing(self) -> str:
        """The state of the job, for the text of a violation."""
        crowd = self.world.crowd
        trains = "the job trains" if crowd.training() else f"no step since {crowd.last_progress_at / 1e9:.1f} s"
        still_open = [f"{incident['id']} ({incident['strategy']})" for incident in self.world.manager.open_incidents()]
        return (
            f"{trains}; {len(self.world.workers())} processes live; open incidents: {', '.join(still_open) or 'none'}"
        )

    def _all_leave(self) -> None:
        """Demand that no process and no agent stays after the end of the job."""
        if self.world.loop.run(self.world.loop.now + END_NS, self._empty):
            return
        staying = [node.name for node in self.world.nodes.values() if node.core is not None]
        raise Violation(
            "live", f"the job is over, but {len(self.world.workers())} workers and the agents of {staying} stay"
        )

    def _empty(self) -> bool:
        return not any(node.core is not None or node.workers for node in self.world.nodes.values())

    def _quiet(self) -> None:
        """Check a healthy job: one message per node and beat, hardly an answer, no order, and steps all the time."""
        asides, sent = self.world.asides, self.world.network.traffic.sent
        orders, steps = self.world.orders, self.world.crowd.steps
        told = sum(self.world.manager.told.values())
        step_ns = self.world.crowd.step_ms * MS
        self.world.loop.run(self.world.loop.now + QUIET_NS, self.world.over)
        beats = len(self.world.nodes) * (QUIET_NS // self.world.scenario.interval_ns + 3)
        sent, told = self.world.network.traffic.sent - sent, sum(self.world.manager.told.values()) - told
        if self.world.orders > orders:
            raise Violation("quiet", f"{self.world.orders - orders} orders to a healthy job in {QUIET_NS // SECOND} s")
        if sent - told - (self.world.asides - asides) > beats or told > len(self.world.nodes) * 2:
            raise Violation(
                "quiet", f"{sent - told} reports (expected {beats}) and {told} answers in {QUIET_NS // SECOND} s"
            )
        if self.world.crowd.steps - steps < QUIET_NS // (2 * step_ns + 100 * MS) - 1:
            raise Violation(
                "live", f"a healthy job made {self.world.crowd.steps - steps} steps in {QUIET_NS // SECOND} s"
            )

    def _end(self) -> None:
        """Training ends: every rank leaves with code 0, and so must the job."""
        self.world.ending = True
        if not self.world.loop.run(self.world.loop.now + END_NS, self.world.over):
            raise Violation("live", f"all ranks have ended in good order, but the job has not: {self._standing()}")
        assert self.world.ended is not None
        if self.world.ended.exit_code != 0:
            raise Violation(
                "live",
                f"training ended in good order, the job with {self.world.ended.exit_code}: {self.world.ended.reason}",
            )
        self._all_leave()
