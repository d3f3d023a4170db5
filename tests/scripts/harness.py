"""The world of the stories: a Manager, its journal, and real core Agents and Workers. Only `run` moves the clock.

Every message takes a fixed time, so a story is the same every time. The trace shows what a reviewer needs: notes,
orders, starts and ends of processes, and what workers are told to do. Equal lines of one instant become one line.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack

from taskd.core.agent import Agent
from taskd.core.effects import End, EndJob, Leave, ManagerEffect, Note, Refuse, Relay, Send, Spawn, Tell, Warn
from taskd.core.events import (
    Connected,
    ConnectionLost,
    Disconnected,
    Gone,
    Heard,
    ManagerEvent,
    Readings,
    Restarted,
    Said,
    Sender,
    Started,
    StartFailed,
    Tick,
    WorkerSaid,
)
from taskd.core.limits import MS
from taskd.core.manager import Manager
from taskd.core.messages import Answer, Goodbye, RailReport, Report, WorkerLeaving, WorkerWelcome
from taskd.core.post import Identity
from taskd.core.snapshot import restored, taken
from taskd.core.types import NOTHING_KEPT, Cover, Kept
from taskd.sim.rails import Cables, crews_of
from tests.scripts import trace
from tests.scripts.process import Process

STEP_NS = 100 * MS
BEAT_NS = 100 * MS
UP_NS = 1 * MS  # agent to manager and back
DOWN_NS = MS // 10  # worker to agent and back


class World:
    """Everything that one story consists of: manager, nodes, processes and the queue of events."""

    job = "story"

    def __init__(self) -> None:
        self.now = 0
        self.size = 0
        self.pids = 100
        self.lives = 0
        self.lines: list[tuple[int, str, str]] = []
        self.nodes: dict[str, Node] = {}
        self.processes: dict[int, Process] = {}
        self.journal: list[tuple[int, tuple[ManagerEvent, ...], list[ManagerEffect]]] = []
        self.manager: Manager | None = None
        self.settings: dict[str, Any] = {}
        self.asleep_until = -1
        self.cables: Cables | None = None
        self.cover = Cover.UNKNOWN  # what all ranks know about the effect of a death
        self.saves = False  # whether the script can write a last checkpoint
        self.parts = 0  # the model is divided into so many; rank r has part r % parts
        self.keeps = False  # each node keeps copies of its ranks' parts, with what leads to the next update
        self.homes: dict[int, Node] = {}  # by rank: the node that keeps them
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    # ---- time -------------------------------------------------------------------------------------------------

    def after(self, delay_ns: int, call: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._queue, (self.now + delay_ns, self._number, call, arguments))

    def run(self, duration_ns: int) -> None:
        end = self.now + duration_ns
        while self._queue and self._queue[0][0] <= end:
            self.now, _, call, arguments = heapq.heappop(self._queue)
            call(*arguments)
        self.now = end

    def say(self, who: str, text: str) -> None:
        self.lines.append((self.now, who, text))

    def saw(self, rank: int, effect: object) -> None:
        self.say(f"rank {rank}", trace.worker_effect(effect))

    # ---- the manager ------------------------------------------------------------------------------------------

    def start(self, nodes: list[tuple[str, bool, int]], ranks: dict[int, str], **settings: Any) -> None:
        self.settings = {"job": self.job, "node_count": len(nodes), **settings}
        self.size = settings["world_size"]
        self.manager = Manager(**self.settings)
        for name, spawns, slots in nodes:
            self.nodes[name] = Node(self, name, spawns, slots)
        for rank, name in ranks.items():
            self.nodes[name].first_start(rank)
        self.after(STEP_NS, self._train)
        self.after(50 * MS, self._wake)

    def _train(self) -> None:
        crowd = [process for process in self.processes.values() if process.alive]
        epochs = {process.core.epoch for process in crowd}
        ranks = {process.rank for process in crowd}
        together = len(ranks) == self.size and all(process.training for process in crowd)
        if together and (len(epochs) == 1 or max(epochs) <= 1):
            for process in crowd:
                if not any(other.still is not None for other in crowd):
                    process.step_made()
                elif process.still is None:
                    process.enters()
        self.after(STEP_NS, self._train)

    def kept(self, rank: int, node: Node) -> Kept:
        """To which updates this rank can bring its part on this node. No rank makes an update before every node has
        kept what leads to it."""
        if not self.keeps or self.homes.get(rank) is not node:
            return NOTHING_KEPT
        newest = max(process.updates for process in self.processes.values())
        return Kept(max(newest - 1, 0), newest)

    def _wake(self) -> None:
        if self.manager is not None and self.now >= self.asleep_until:
            deadline = self.manager.next_deadline()
            if deadline is not None and deadline <= self.now:
                self.tell_manager(Tick())
        self.after(10 * MS, self._wake)

    def rails_of(self, node: str) -> tuple[RailReport, ...]:
        """Return the rail reports that a node's agent would read from the counters of its ranks."""
        if self.cables is None:
            return ()
        living = [(process.node.name, process) for process in self.processes.values() if process.alive]
        return self.cables.reports(node, crews_of(living, lambda process: True), self.now)

    def tell_manager(self, event: ManagerEvent) -> None:
        if self.manager is None:
            return
        if self.now < self.asleep_until:
            self.after(self.asleep_until - self.now, self.tell_manager, event)
            return
        effects = self.manager.step(self.now, event)
        journal = self.manager.to_journal()
        if journal:
            self.journal.append((self.now, journal, effects))
        for effect in effects:
            if isinstance(effect, Tell):
                if not isinstance(effect.message, Answer) or not effect.message.accepted:
                    self.say("manager", trace.tell(effect))
                node = self.nodes.get(effect.node)
                if node is not None:
                    self.after(UP_NS, node.heard, effect)
            elif isinstance(effect, Note):
                self.say("manager", f"{effect.kind}: {effect.text}")
            else:
                assert isinstance(effect, EndJob)
                self.say("manager", f"END OF THE JOB, exit code {effect.exit_code}: {effect.reason}")

    def manager_dies(self) -> None:
        self.manager = None
        for node in self.nodes.values():
            node.disconnect()

    def manager_returns(self, journal_until: int) -> None:
        self.journal = [row for row in self.journal if row[0] <= journal_until]
        self.manager = Manager(**self.settings)
        for at, events, _ in self.journal:
            for event in events:
                self.manager.replay(at, event)
        if self.journal:
            self.tell_manager(Restarted())
        for node in self.nodes.values():
            self.after(20 * MS, node.connect)

    def check_replay(self) -> None:
        """Check that a fresh core makes the same decisions from the journal. The same must hold if, at any row, a
        snapshot replaces the rows before."""
        again, through = Manager(**self.settings), Manager(**self.settings)
        for at, events, effects in self.journal:
            through = restored(msgpack.unpackb(msgpack.packb(taken(through))))
            for core, what in ((again, "a replay"), (through, "a replay through a snapshot")):
                replayed = [effect for event in events for effect in core.replay(at, event)]
                assert replayed == effects, f"at {at / 1e9:.3f} s {what} decides otherwise:\n{replayed}\n{effects}"


class Node:
    """A host: its agent's core and its processes. `agent` is None while no agent runs."""

    def __init__(self, world: World, name: str, spawns: bool, slots: int) -> None:
        self.world, self.name, self.spawns, self.slots = world, name, spawns, slots
        self.up = True
        self.silent = False
        self.start_fails = False
        self.agent: Agent | None = None
        self.life = self.sequence = 0
        self.holders: dict[int, Process] = {}
        if spawns:
            self.start_agent()

    def start_agent(self) -> None:
        world = self.world
        world.lives += 1
        self.life, self.sequence = world.lives, 0
        who = Identity(world.job, self.name, f"host-{self.name}", 1, self.spawns, self.slots, BEAT_NS)
        self.agent = Agent(who)
        world.after(UP_NS, self.connect)
        world.after(BEAT_NS, self._look, self.life)

    def connect(self) -> None:
        if self.agent is not None and self.up and self.world.manager is not None and not self.silent:
            self.step(Connected())

    def disconnect(self) -> None:
        if self.agent is not None:
            self.step(Disconnected())

    def down(self) -> None:
        """The host is lost. No agent sees its processes end, and its connection to the manager breaks."""
        self.up, self.agent = False, None
        for process in self.world.processes.values():
            if process.node is self:
                process.alive = False
        self.world.after(300 * MS, self.world.tell_manager, ConnectionLost(self.name))

    def _look(self, life: int) -> None:
        if self.agent is None or life != self.life:
            return
        held = [process for process in self.holders.values() if process.alive]
        self.step(Readings(tuple(process.reading() for process in held)))
        deadline = self.agent.next_deadline() if self.agent is not None else None
        if deadline is not None and deadline <= self.world.now:
            self.step(Tick())
        self.world.after(BEAT_NS // 2, self._look, life)

    # ---- processes --------------------------------------------------------------------------------------------

    def first_start(self, rank: int) -> None:
        """A launcher (ours or a foreign one) starts a worker. Only ours reports it."""
        process = Process(self.world, self, rank, 1 if self.spawns else 0, 0, False)
        self._adopt(process)
        if self.spawns:
            self.step(Started(rank, 1, process.pid))

    def _adopt(self, process: Process) -> None:
        self.world.processes[process.rank] = process
        if self.spawns:
            self.holders[process.rank] = process

    def spawn(self, effect: Spawn) -> None:
        if self.agent is None:
            return
        if self.start_fails:
            self.step(StartFailed(effect.rank, effect.incarnation, "fork: out of memory"))
            return
        process = Process(self.world, self, effect.rank, effect.incarnation, effect.epoch, effect.newcomer)
        self._adopt(process)
        self.step(Started(effect.rank, effect.incarnation, process.pid))

    def leaves(self, process: Process) -> None:
        """A process says that it ends in good order, and does so."""
        self.hear(WorkerLeaving(process.rank, process.incarnation, ""), process)
        self.world.after(DOWN_NS, process.die, 0, "")

    def gone(self, process: Process, exit_code: int, reason: str) -> None:
        if self.agent is not None and process.incarnation:
            if exit_code == 0:
                self.step(Readings((process.reading(),)))
            self.step(Gone(process.rank, process.incarnation, exit_code, reason))

    def hear(self, message: Any, process: Process) -> None:
        if self.agent is None and self.up and not self.spawns:
            self.start_agent()
        self.world.after(DOWN_NS, self._worker_said, message, process)

    def _worker_said(self, message: Any, process: Process) -> None:
        if self.agent is not None:
            self.step(WorkerSaid(message), process)

    # ---- the agent's effects ----------------------------------------------------------------------------------

    def heard(self, tell: Tell) -> None:
        if self.agent is not None and not self.silent and tell.life in (0, self.life):
            self.step(Heard(tell.message))

    def step(self, event: Any, speaker: Process | None = None) -> None:
        if self.agent is not None:
            for effect in self.agent.step(self.world.now, event):
                self._carry_out(effect, speaker)

    def _carry_out(self, effect: Any, speaker: Process | None) -> None:
        world = self.world
        if isinstance(effect, Send):
            self.sequence += 1
            message = effect.message
            if isinstance(message, Report):
                message = replace(message, rails=world.rails_of(self.name))
            said = Said(Sender(self.name, self.life, self.sequence), message)
            if not self.silent or isinstance(effect.message, Goodbye):
                world.after(UP_NS, world.tell_manager, said)
        elif isinstance(effect, Relay):
            self._relay(effect, speaker)
        elif isinstance(effect, Refuse):
            world.say(self.name, f"turns process {effect.pid} away: {effect.message.reason}")
        elif isinstance(effect, Spawn):
            how = "as a newcomer" if effect.newcomer else "afresh"
            world.say(self.name, f"starts rank {effect.rank}#{effect.incarnation} {how}, epoch {effect.epoch}")
            world.after(10 * MS, self.spawn, effect)
        elif isinstance(effect, End):
            world.say(self.name, f"ends rank {effect.rank}#{effect.incarnation}: {effect.reason}")
            process = self.holders.get(effect.rank)
            if process is not None and process.incarnation == effect.incarnation:
                world.after(1 * MS, process.die, -9, "")
        elif isinstance(effect, Leave):
            world.say(self.name, f"leaves with exit code {effect.exit_code}: {effect.reason}")
            self.agent = None
        else:
            assert isinstance(effect, Warn)
            world.say(self.name, f"warns: {effect.text}")

    def _relay(self, effect: Relay, speaker: Process | None) -> None:
        message = effect.message
        for rank in effect.ranks:
            process = self.holders.get(rank)
            if isinstance(message, WorkerWelcome) and message.accepted:
                process = speaker or process
                if process is not None:
                    self.holders[rank] = process
                    process.incarnation = message.incarnation
            if process is not None:
                self.world.after(DOWN_NS, process.hear, message)
