"""The simulated shell of the manager: delivers, journals, wakes the core at its deadlines; dies, restarts and sleeps.

The state machine inside is the production core.manager.Manager. The journal is the list of events in the order in which
the core got them. The real shell writes the same list to SQLite. A crash may lose the journal's unsynced tail, or the
whole journal.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from taskd.core import limits
from taskd.core.effects import EndJob, Note, Tell
from taskd.core.events import ConnectionLost, Restarted, Said, Sender, Tick
from taskd.core.manager import Manager
from taskd.core.messages import Order, RailOrder
from taskd.core.snapshot import restored, taken
from taskd.core.types import Outcome
from taskd.sim.setting import JOB, NAME, Setting
from taskd.sim.watch import Violation

MS = 1_000_000
MENDED = (Outcome.HEALED.value, Outcome.STARTED_OVER.value)
MAX_TICKS_AT_ONCE = 16
"""A deadline that is still due after this many ticks would keep the real loop spinning."""
SNAPSHOT_EVENTS = 300
"""A snapshot after this many events. The number is smaller than in a real manager, so that stories have snapshots at
every stage of a repair."""
TAIL = 200
"""The largest number of events in a journal's unsynced tail."""


class SimJournal(list[tuple[int, Any]]):
    """The rows that are not lost: times and events."""

    def __init__(self) -> None:
        super().__init__()
        self.past: tuple[int, list[Any]] = (0, [])  # a snapshot that replaces this many events; 0: there is none
        self.first_term = 1  # of its first row; the shell keeps the number of the last term beside the journal

    def lose(self, events: int) -> None:
        """The last events are lost, perhaps with the snapshot."""
        if events:
            del self[-events:]
            self.past = self.past if self.past[0] <= len(self) else (0, [])


class SimManager:
    """The manager's successive processes, and the journal that they share."""

    def __init__(self, world: Setting) -> None:
        self.world = world
        self.journal = SimJournal()
        self.alive = True
        self.awake = True
        self.gone = False
        """It is dead, and never comes back."""
        self._away_ns = 0
        self._away_since = -1  # -1: it runs
        self.began_ns = 0  # when the present process began, and with it the clocks of open incidents
        self.told = Counter[str]()
        self.heard = 0
        self.notes = Counter[str]()
        self.ended: EndJob | None = None
        self.core = self._fresh()
        self._queue: list[Any] = []
        self._wake_at = 0
        self._ticks: tuple[int, int] = (-1, 0)
        world.network.attach(NAME, self.receive)
        self._plan()

    def _fresh(self) -> Manager:
        scenario = self.world.scenario
        return self.world.machines.manager(
            JOB,
            scenario.options.ranks,
            scenario.nodes,
            scenario.strategies,
            scenario.launches,
            scenario.max_restarts,
            self.journal.first_term,
        )

    # ---- events ------------------------------------------------------------------------------------------------

    def receive(self, source: str, datagram: tuple[Sender, Any]) -> None:
        """A datagram of an agent has arrived."""
        self.heard += 1
        self.handle(Said(*datagram))

    def connection_lost(self, node: str) -> None:
        """The connection of a node's agent broke."""
        self.handle(ConnectionLost(node))

    def handle(self, event: Any) -> None:
        """Give an event to the core now, or when the manager runs again. A dead manager gets no events."""
        if not self.alive:
            return
        if not self.awake:
            self._queue.append(event)
            return
        now = self.world.loop.now
        effects = self.world.guarded(self.core.step, now, event, who=NAME)
        self.journal.extend((now, row) for row in self.core.to_journal())
        for row in self.core.to_journal():
            self.world.wrote(row)
        ours = self.world.machines.manager is Manager  # a test's own manager has no snapshots
        if ours and len(self.journal) >= self.journal.past[0] + SNAPSHOT_EVENTS:
            self.journal.past = (len(self.journal), taken(self.core))
        self._carry_out(effects)
        self._plan()

    def _carry_out(self, effects: list[Any]) -> None:
        world = self.world
        for effect in effects:
            world.loop.tell(NAME, effect)
            if isinstance(effect, Tell):
                self.told[type(effect.message).__name__] += 1
                if isinstance(effect.message, Order):
                    world.orders += 1
                elif isinstance(effect.message, RailOrder):
                    world.rails_ordered(effect.node, effect.message)
                world.check_wire(effect.message)
                world.network.send(NAME, effect.node, (effect.life, effect.message))
            elif isinstance(effect, Note):
                self.notes[effect.kind] += 1
                if effect.kind == "closed":
                    self._check_heal(effect.incident)
                elif effect.kind == "lost":
                    world.given_up(effect.node, effect.text)
            elif self.ended is None:
                self.ended = effect
                world.job_ended(effect)

    def _check_heal(self, number: int) -> None:
        """Check that a healed job really trains. A redo that took all its time is closed without proof."""
        incident = next((found for found in self.incidents() if found["id"] == number), None)
        if incident is None or incident["outcome"] not in MENDED or incident["kind"] == "rail":
            return
        redo_ms = incident["phases"][-1]["ms"] if incident["phases"] else 0
        if redo_ms * MS < limits.DEADLINE_REDO_NS:
            crowd = self.world.crowd
            self.world.watch.healed(incident, crowd.began_at, crowd.last_progress_at)

    # ---- deadlines ---------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        deadline = self.core.next_deadline()
        if deadline is None:
            return
        now = self.world.loop.now
        if self._wake_at <= now or deadline < self._wake_at:
            self._wake_at = max(deadline, now)
            self.world.loop.at(self._wake_at, self._wake, self.core)

    def _wake(self, core: Manager) -> None:
        if core is not self.core or not self.alive or not self.awake:
            return
        now = self.world.loop.now
        if now < self._wake_at:
            return
        self._wake_at = 0
        deadline = core.next_deadline()
        if deadline is not None and deadline <= now:
            self._count_ticks(now)
            self.handle(Tick())
        else:
            self._plan()

    def _count_ticks(self, now: int) -> None:
        at, count = self._ticks
        self._ticks = (now, count + 1 if at == now else 1)
        if self._ticks[1] > MAX_TICKS_AT_ONCE:
            raise Violation("core", f"the manager's deadline stays due at {now / 1e9:.4f} s: its loop would spin")

    # ---- faults ------------------------------------------------------------------------------------------------

    def crash(self, lost_events: int) -> None:
        """The process dies and loses the journal's unsynced end, perhaps with the snapshot."""
        if self._away_since < 0:
            self._away_since = self.world.loop.now
        self.alive, self.awake = False, True
        self._queue.clear()
        self.journal.lose(lost_events)

    def restart(self) -> None:
        """A new process reads the journal and continues."""
        if self.alive or self.gone:
            return
        world = self.world
        count, values = self.journal.past
        if not self.journal:
            self.journal.first_term = self.core.term
        self.core = world.guarded(restored, values, who=f"{NAME}'s snapshot") if count else self._fresh()
        for at, event in self.journal[count:]:
            world.guarded(self.core.replay, at, event, who=f"{NAME}'s replay")
        self.alive, self.awake = True, True
        self.began_ns = world.loop.now
        self._is_back()
        self._wake_at = 0
        world.manager_restarts()
        world.loop.tell(NAME, f"restarted from {len(self.journal)} events")
        self.handle(Restarted())
        world.manager_is_back()

    def sleep(self, duration_ns: int) -> None:
        """The process does not run for a while. Arriving events wait in its queue."""
        self.awake = False
        self._away_since = self.world.loop.now
        self.world.loop.after(duration_ns, self._awaken, self.core)

    def _awaken(self, core: Manager) -> None:
        if core is self.core:
            self.wake()

    def wake(self) -> None:
        """The process runs again and handles the events that arrived meanwhile."""
        if self.awake or not self.alive:
            return
        self.awake = True
        self._is_back()
        self._wake_at = 0
        waiting, self._queue = self._queue, []
        self.world.loop.tell(NAME, f"awake again, {len(waiting)} events waited")
        if len(waiting) % 2:  # a shell may see its timer before its queue: here in half of the cases
            self.handle(Tick())
        for event in waiting:
            self.handle(event)
        self._plan()

    def _is_back(self) -> None:
        self._away_ns, self._away_since = self.away_ns, -1

    @property
    def away_ns(self) -> int:
        """How long no manager has run, in total."""
        return self._away_ns + (self.world.loop.now - self._away_since if self._away_since >= 0 else 0)

    # ---- what an operator sees ---------------------------------------------------------------------------------

    def incidents(self) -> list[dict[str, Any]]:
        """The core's own records, for the summary, the budgets and closed incidents."""
        return self.world.guarded(self.core.incidents, self.world.loop.now, who=NAME)

    def rails(self) -> list[dict[str, Any]]:
        """What `taskd rail list` shows."""
        facts = self.world.guarded(self.core.rails, self.world.loop.now, who=NAME)
        return list(facts["rails"])

    def open_incidents(self) -> list[dict[str, Any]]:
        """The incidents that are not closed."""
        return [incident for incident in self.incidents() if incident["outcome"] == "open"]

    def check_bounds(self) -> None:
        """Check that no list that the manager keeps for people is longer than its bound."""
        incidents = self.incidents()
        still_open = sum(1 for incident in incidents if incident["outcome"] == "open")
        if len(incidents) > limits.MAX_KEPT_INCIDENTS or still_open > limits.MAX_OPEN_INCIDENTS:
            raise Violation("bounds", f"the manager keeps {len(incidents)} incidents, {still_open} of them open")
