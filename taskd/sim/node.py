"""The simulated shell of a node: its agent, its workers, and how they notice each other's death.

The state machine inside is the production core.agent.Agent. A launcher starts workers, and they die with it. A side
agent only watches, and its workers start it again. A worker's messages reach the agent in order, as on the socket
between them. Between agent and manager there is the network, which guarantees nothing.
"""

from __future__ import annotations

from typing import Any

from taskd.core import limits
from taskd.core.effects import End, Leave, Refuse, Relay, Send, Spawn
from taskd.core.events import (
    Connected,
    Disconnected,
    Gone,
    Heard,
    Reading,
    Readings,
    Sender,
    Started,
    StartFailed,
    Tick,
    WorkerSaid,
)
from taskd.core.messages import Order, PauseAnswers, Proofs, Stillness, WorkerWelcome
from taskd.core.post import Identity
from taskd.sim.setting import JOB, NAME, Setting
from taskd.sim.stands import seen
from taskd.sim.watch import Violation
from taskd.sim.worker import SimWorker

MS = 1_000_000
HEARD_NS = 3_000 * MS
"""At least one report of a node arrives within this time, in any weather."""
FENCED_NS = 10_000 * MS
"""After a cut, a node can be reached again. Within this time it has ended its ranks that were replaced meanwhile."""
MIN_TICK_NS = 1 * MS
"""The real loop's poll counts in milliseconds, so a deadline that stays due is checked again after one, not at once."""


class Line:
    """What has happened to the line between a node's agent and the manager."""

    def __init__(self) -> None:
        self.connection = 0  # the number of the last connection
        self.cuts = 0  # how many cuts separate the two now
        self.silent_since = -1  # when the last such time began; -1: never yet
        self.mended_at = -2 * FENCED_NS

    def cut(self, now: int) -> None:
        """From now on no message passes."""
        if not self.cuts:
            self.silent_since = now
        self.cuts += 1

    def mend(self, now: int) -> None:
        """One of the cuts is over."""
        self.cuts, self.mended_at = self.cuts - 1, now

    def cut_within(self, span_ns: int, now: int) -> bool:
        """Whether it is cut, or was within this time."""
        return self.cuts > 0 or now - self.mended_at <= span_ns


class SimNode:
    """A host with at most one agent at a time, and its workers."""

    def __init__(self, world: Setting, name: str) -> None:
        self.world = world
        self.name = name
        self.up = True
        self.workers: dict[int, SimWorker] = {}  # by process number
        self.holders: dict[int, int] = {}  # rank -> the process that the agent has let in
        self.core: Any = None
        self.line = Line()
        self.life = 0
        self.sequence = 0
        self.left = False
        self._tick_at = 0
        self.disturbed = False  # a fault has struck the node as a whole
        self.accused = False  # a rank has reported a failed collective against a rank of this node
        world.network.attach(name, self.receive)

    # ---- the agent's process -----------------------------------------------------------------------------------

    def start_agent(self) -> None:
        """Start a new agent process, with an empty memory and a new life number."""
        world = self.world
        if self.core is not None or not self.up or self.left:
            return
        self.life = world.rng.getrandbits(62)
        self.sequence = self._tick_at = 0
        self.holders.clear()
        scenario, host = world.scenario, f"host-{self.name}"
        spawns, slots, interval_ns = scenario.launches, scenario.per_node, scenario.interval_ns
        who = Identity(JOB, self.name, host, world.next_pid(), spawns, slots, interval_ns)
        self.core = world.machines.agent(who)
        world.loop.tell(self.name, "its agent starts")
        life = self.life
        world.loop.after(world.rng.randint(1 * MS, 20 * MS), self.connect, life)
        world.loop.after(world.rng.randint(0, world.scenario.interval_ns), self._look, life)
        for worker in self.workers.values():
            if worker.alive:
                world.loop.after(world.rng.randint(1 * MS, 100 * MS), worker.say_hello)

    def stop_agent(self) -> None:
        """The agent's process dies. The manager may notice the broken connection."""
        self.core = None
        for worker in self.workers.values():
            worker.line_broke()
        self.world.loop.tell(self.name, "its agent dies")

    def connect(self, life: int) -> None:
        """Connect to the manager, if both live and nothing is cut."""
        if self.core is None or life != self.life:
            return
        if self.world.manager_lives() and not self.world.network.is_cut(self.name, NAME):
            self.line.connection += 1
            self._step(Connected())

    def disconnect(self, life: int, connection: int) -> None:
        """This connection to the manager broke. A socket never says so after it has made the next connection."""
        if self.core is not None and life == self.life and connection == self.line.connection:
            self._step(Disconnected())

    def _look(self, life: int) -> None:
        """Scan the beat pages once, and again after each interval."""
        if self.core is None or life != self.life:
            return
        now = self.world.loop.now
        self._step(
            Readings(
                tuple(seen(worker, now) for worker in self.workers.values() if worker.alive and worker.incarnation)
            )
        )
        self.world.loop.after(self.world.scenario.interval_ns, self._look, life)

    # ---- events ------------------------------------------------------------------------------------------------

    def receive(self, source: str, datagram: tuple[int, Any]) -> None:
        """A datagram of the manager has arrived. Its `life` 0 means any agent that runs here."""
        life, message = datagram
        if self.core is not None and life in (0, self.life):
            self._step(Heard(message))

    def worker_says(self, worker: SimWorker, message: Any) -> None:
        """Send a worker's message over the node's socket. Without a connection it is lost."""
        if self.core is not None and worker.connected:
            loop = self.world.loop
            worker.said_at = max(worker.said_at, loop.now + self.world.rng.randint(20_000, 300_000))
            loop.at(worker.said_at, self._worker_said, self.life, worker, message)

    def _worker_said(self, life: int, worker: SimWorker, message: Any) -> None:
        if self.core is not None and life == self.life:
            self._step(WorkerSaid(message), worker)

    def worker_died(self, worker: SimWorker, exit_code: int, reason: str) -> None:
        """A process of this node has ended. Its agent sees that within some milliseconds."""
        self.workers.pop(worker.pid, None)
        if self.core is not None and self.up:
            delay_ns = self.world.rng.randint(0, 5 * MS)
            last = worker.reading(self.world.loop.now)
            self.world.loop.after(delay_ns, self._gone, self.life, worker, exit_code, reason, last)
        self.world.worker_died(worker, exit_code)

    def _gone(self, life: int, worker: SimWorker, exit_code: int, reason: str, last: Reading) -> None:
        if self.core is not None and life == self.life and exit_code == 0:
            self._step(Readings((last,), ()))
        if self.core is not None and life == self.life:
            self._step(Gone(worker.rank, worker.incarnation, exit_code, reason))

    def _step(self, event: Any, speaker: SimWorker | None = None) -> None:
        world = self.world
        for effect in world.guarded(self.core.step, world.loop.now, event, who=self.name):
            self._carry_out(effect, speaker)
            if self.core is None:
                return
        self._plan_tick()

    def _plan_tick(self) -> None:
        deadline = self.core.next_deadline()
        now = self.world.loop.now
        if deadline is not None and (self._tick_at <= now or deadline < self._tick_at):
            self._tick_at = max(deadline, now + MIN_TICK_NS)
            self.world.loop.at(self._tick_at, self._tick, self.life)

    def _tick(self, life: int) -> None:
        now = self.world.loop.now
        if self.core is None or life != self.life or now < self._tick_at:
            return
        self._tick_at = 0
        deadline = self.core.next_deadline()
        if deadline is not None and deadline <= now:
            self._step(Tick())
        else:
            self._plan_tick()

    def _carry_out(self, effect: Any, speaker: SimWorker | None) -> None:
        world = self.world
        if isinstance(effect, Send):
            self.sequence += 1
            message = world.with_rails(self.name, effect.message)
            world.check_wire(message)
            world.asides += isinstance(message, Proofs | Stillness | PauseAnswers)
            world.network.send(self.name, NAME, (Sender(self.name, self.life, self.sequence), message))
        elif isinstance(effect, Relay):
            self._relay(effect, speaker)
        elif isinstance(effect, Refuse):
            world.loop.tell(self.name, effect)
            if effect.pid in self.workers:
                self._pass_on(self.workers[effect.pid], effect.message)
        elif isinstance(effect, Spawn):
            world.loop.tell(self.name, effect)
            world.loop.after(world.rng.randint(2 * MS, 40 * MS), self.spawn, self.life, effect)
        elif isinstance(effect, End):
            world.loop.tell(self.name, effect)
            self._end(effect)
        elif isinstance(effect, Leave):
            world.loop.tell(self.name, effect)
            self.leave()
        else:
            world.loop.tell(self.name, effect)

    def _relay(self, effect: Relay, speaker: SimWorker | None) -> None:
        """Send a message to workers: a welcome to the process that said hello, others to the process of the rank."""
        message = effect.message
        if isinstance(message, Order):
            self.world.watch.relays(self.name, self.life, message.epoch)
        self.world.loop.tell(self.name, effect)
        for rank in effect.ranks:
            if isinstance(message, WorkerWelcome) and message.accepted and speaker is not None:
                self.holders[rank] = speaker.pid
            worker = self.workers.get(self.holders.get(rank, -1))
            if worker is None:
                continue
            if isinstance(message, WorkerWelcome) and message.accepted:
                worker.incarnation = message.incarnation
            self._pass_on(worker, message)

    def _pass_on(self, worker: SimWorker, message: Any) -> None:
        """Send a message to a worker over the node's socket."""
        loop = self.world.loop
        worker.heard_at = max(worker.heard_at, loop.now + self.world.rng.randint(20_000, 300_000))
        loop.at(worker.heard_at, worker.hear, message)

    # ---- processes ---------------------------------------------------------------------------------------------

    def spawn(self, life: int, effect: Spawn) -> None:
        """The launcher forks a worker, unless a planted fault prevents it."""
        if self.core is None or life != self.life or not self.up:
            return
        self.world.restarts[effect.rank] += 1
        self.world.watch.started(effect.rank, self.world.loop.now)
        if self.world.strikes("spawn"):
            self.world.harm()
            self._step(StartFailed(effect.rank, effect.incarnation, "fork: resource temporarily unavailable"))
            return
        worker = SimWorker(self, effect.rank, effect.incarnation, effect.epoch, effect.newcomer)
        self.world.worker_started(worker)
        self.adopt(worker)

    def adopt(self, worker: SimWorker) -> None:
        """A process has begun here. A launcher's own child is reported at once, any other when it says hello."""
        self.workers[worker.pid] = worker
        self.world.codes.pop(worker.rank, None)
        if not self.world.scenario.launches:
            self.start_agent()  # the first worker that finds no agent starts one
        elif self.core is not None:
            self.holders[worker.rank] = worker.pid
            self._step(Started(worker.rank, worker.incarnation, worker.pid))

    def cut(self) -> None:
        """From now on no message passes between the manager and this node."""
        self.line.cut(self.world.loop.now)

    def mend(self) -> None:
        """One of its cuts is over."""
        self.line.mend(self.world.loop.now)

    def well_heard(self) -> bool:
        """Whether the node is not cut off from the manager, and was not just now."""
        return not self.line.cut_within(HEARD_NS, self.world.loop.now)

    def given_up(self, text: str) -> None:
        """The manager declares this node lost. Check that more than a short starvation has struck it."""
        struck = self.disturbed or self.accused or not self.up or self.core is None
        starved_ns = self.world.loop.now - self.line.silent_since
        if self.line.silent_since >= 0 and starved_ns + HEARD_NS < limits.SILENCE_ALONE_NS and not struck:
            raise Violation("starved-stays", f"{text}, after it was starved for {starved_ns // MS} ms and nothing else")

    def out_of_reach(self) -> bool:
        """Whether the manager cannot reach it, or could not until just now. Replaced ranks may still run here."""
        return self.line.cut_within(FENCED_NS, self.world.loop.now)

    def _end(self, effect: End) -> None:
        """End a process. Only a launcher may do that, for the workers it started; a side agent may not."""
        if not self.world.scenario.launches:
            return
        for worker in list(self.workers.values()):
            if worker.rank == effect.rank and worker.incarnation == effect.incarnation:
                self.world.ends(worker, effect.reason)
                self.world.loop.after(self.world.rng.randint(0, 10 * MS), worker.die, -9, effect.reason)

    def kill_workers(self) -> None:
        """Every worker of the node dies at once."""
        for worker in list(self.workers.values()):
            worker.die(-9, f"{self.name} is lost")

    def leave(self) -> None:
        """The agent ends in good order. A launcher is then gone for good, and so are its workers."""
        self.core = None
        if self.world.scenario.launches:
            self.left = True
            self.kill_workers()
        elif any(worker.alive for worker in self.workers.values()):  # just started: it starts a new agent
            for worker in self.workers.values():
                worker.line_broke()
            self.world.loop.after(20 * MS, self.start_agent)
