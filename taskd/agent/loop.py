"""The agent's loop: one thread with one poll, which feeds core.Agent.

Everything that happens on the node becomes an event: a worker's message, the end of a process, a link that goes down,
a message of the manager, a deadline. The core's effects are carried out in order. Beat pages are read at each interval.
The same loop runs as a side process (`python -m taskd.agent`), which only watches. It also runs inside a launcher,
which gives it a `Spawner`, so that it can start and end workers.
It never blocks on a worker or on the manager, and it does NOT decide anything: core.Agent does.

A bug of taskd in the handling of one event or effect costs only that one (mistakes.py). Reports and orders are
repeated, but an end of this loop would end the node's ranks.
"""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext

import zmq

from taskd import log
from taskd.agent.deaths import Deaths
from taskd.agent.desk import Desk
from taskd.agent.hardware import Hardware
from taskd.agent.memory_kills import MemoryKills
from taskd.agent.pages import Pages
from taskd.agent.starter import Spawner, Starter
from taskd.agent.upstream import Upstream
from taskd.agent.wake import Wake
from taskd.agent.workers import Worker, Workers
from taskd.backup.heirs import Heirs, Keepers
from taskd.config import Config
from taskd.core import effects, events
from taskd.core.agent import Agent
from taskd.core.limits import MAX_TEXT, MS
from taskd.core.messages import Answer, Goodbye, Stop
from taskd.core.post import Identity
from taskd.mistakes import Mistakes

_logger = log.get(__name__)


class AgentLoop:
    """The agent of one node. `run()` serves until the core says leave, or until any thread calls `stop`."""

    def __init__(
        self,
        config: Config,
        node: str,
        listener: socket.socket,
        spawner: Spawner | None = None,
        slots: int | None = None,
        on_stop: Callable[[Stop], None] | None = None,
        keepers: Keepers | None = None,
    ) -> None:
        """`slots`: how many workers the node has room for. `on_stop` is called once when the manager ends the job.
        `keepers`: if given, records are copied, so that ranks can move between this node and others."""
        self.node = node
        self._queue: deque[events.AgentEvent] = deque()
        self._wake = Wake()
        self._upstream = Upstream(config, node, spawner is not None, on_stop)
        line = self._upstream.line
        self.workers = Workers()
        identity = Identity(
            job=config.job.id,
            node=node,
            host=os.uname().nodename,
            pid=os.getpid(),
            spawns=spawner is not None,
            slots=config.job.proc_per_node if slots is None else slots,
            interval_ns=config.agent.beat_interval_ms * MS,
            linger_ns=config.agent.linger_ms * MS,
        )
        self.core = Agent(identity)
        self.left: effects.Leave | None = None
        self.others: Callable[[], Mapping[int, Callable[[], None]]] = dict
        """Further descriptors to wait for, each with a function to call when it is readable.

        A launcher uses this for its other children."""
        heirs = None
        if keepers is not None:
            heirs = Heirs(config.job.id, node, keepers, self.workers.records, self._wake.ring)
        self._starter = Starter(spawner, heirs, self.workers, self._queue.append)
        self._hardware = Hardware(node, config.agent.devices, self.workers, self._queue.append)
        memory = MemoryKills()
        reap, excuse = (spawner.reap, spawner.excuse) if spawner is not None else (None, None)
        self._deaths = Deaths(self.workers, reap, excuse, memory)
        self.pages = Pages(self.workers, self._deaths, memory)
        self.desk = Desk(config.job.id, node, listener, self.workers, self._deaths, line, self._step)
        self._deaths.hear = self.desk.receive
        self.pages.still.ask_stack = self.desk.ask_stack
        self.desk.stack_told = self.pages.still.stack_told
        self._stop_reason: str | None = None
        self._mistakes = Mistakes(_logger, "this node goes on without it")
        self._upstream.find_key()

    # ---- from other threads -----------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the loop in good order, soon."""
        self._stop_reason = reason
        self._wake.ring()

    # ---- the loop ---------------------------------------------------------------------------------------------

    def start(self, seats: Sequence[effects.Spawn]) -> None:
        """Start these workers without an order of the manager: a launcher's first workers."""
        for seat in seats:
            self._starter.spawn(seat)
        self._work_off()  # before any of them introduces itself: the core refuses processes that were not started here

    def run(self) -> int:
        """Serve; returns the exit code that the core gave, 0 when stopped."""
        self._upstream.start()
        self._starter.begin()
        try:
            while self.left is None and self._stop_reason is None:
                self._turn()
        finally:
            self._close()
        return self.left.exit_code if self.left is not None else 0

    def _turn(self) -> None:
        ready, about = self._poll(), self._mistakes.about
        now = time.monotonic_ns()
        if self.workers.watch.fd in ready:
            with about("taking the news of the death watch"):
                self._deaths.take(now)
        if self._wake.fd in ready:
            self._wake.hush()
        with about("hearing the manager"):
            self._serve_upstream()
        if self.desk.fd in ready:
            with about("letting a process in"):
                self.desk.accept()
        for worker in list(self.workers.by_pid.values()):
            if worker.connection is not None and worker.connection.fileno() in ready:
                with about(f"hearing process {worker.pid}"):
                    self._receive(worker)
            if worker.pidfd in ready:
                with about(f"taking the end of process {worker.pid}"):
                    self._deaths.ended(worker)
        for fd, serve in self._hardware.sources().items():
            if fd in ready:
                with about("looking at the hardware of this node"):
                    serve()
        with about("looking after the watch of the devices"):
            self._hardware.tend(now)
        for fd, serve in self.others().items():
            if fd in ready:
                with about("serving the launcher's other children"):
                    serve()
        with about("starting workers"):
            self._starter.go_on()
        now = time.monotonic_ns()
        with about("looking at processes that may have ended"):
            self._take_ends(self._deaths.found(now))
        deadline = self.core.next_deadline()
        if deadline is not None and now >= deadline:
            # Read the pages once per tick, just before it: then reports are fresh, and a quiet node wakes once per
            # interval. While nothing has happened in the job, the pages are not read closely.
            with about("reading the pages of the ranks"):
                readings = self.pages.read(now, closely=self.core.post.order is not None)
                if readings is not None:
                    self._queue.append(readings)
            self._queue.append(events.Tick())
        self._work_off()
        self._deaths.forget()
        self.desk.tell_reason(now)

    def _poll(self) -> set[object]:
        poller = zmq.Poller()
        fds = [self.workers.watch.fd, self._wake.fd, self.desk.fd, *self._hardware.sources()]
        for worker in self.workers.by_pid.values():
            fds.append(worker.pidfd)
            if worker.connection is not None:
                fds.append(worker.connection.fileno())
        for source in (*fds, *self.others(), *self._upstream.line.sources()):
            if source != -1:
                poller.register(source, zmq.POLLIN)
        checks = (self.core.next_deadline(), self._deaths.next_check_ns(), self._hardware.next_check_ns())
        due = [at for at in checks if at is not None]
        wait_ms = max(0, -(-(min(due, default=0) - time.monotonic_ns()) // MS))
        return {source for source, _ in poller.poll(wait_ms)}

    def _work_off(self) -> None:
        while self._queue:
            self._step(self._queue.popleft())

    def _step(self, event: events.AgentEvent, asker: Worker | None = None) -> None:
        wanted: Sequence[effects.AgentEffect] = ()
        # A death is told once. If the core cannot take it, nobody would ever miss that rank: then this loop has to end.
        with nullcontext() if isinstance(event, events.Gone) else self._mistakes.about(event):
            wanted = self.core.step(time.monotonic_ns(), event)
        for effect in wanted:
            with self._mistakes.about(effect):
                self._carry_out(effect, asker)

    def _receive(self, worker: Worker) -> None:
        """Receive what this process has sent. If that raises, close its connection.

        The process connects again, so the same message does not cause the error for ever."""
        try:
            self.desk.receive(worker)
        except Exception:
            self.workers.hang_up(worker)
            raise

    def _carry_out(self, effect: effects.AgentEffect, asker: Worker | None) -> None:
        if isinstance(effect, effects.Send):
            self._upstream.line.send(effect.message)
        elif isinstance(effect, effects.Relay):
            self.desk.relay(effect, asker)
        elif isinstance(effect, effects.Refuse):
            worker = self.workers.by_pid.get(effect.pid)
            if worker is not None:
                self.desk.tell(worker, effect.message)
        elif isinstance(effect, effects.Spawn):
            self._starter.spawn(effect)
        elif isinstance(effect, effects.End):
            self._starter.end(effect)
        elif isinstance(effect, effects.Leave):
            self.left = effect
            _logger.info("the agent of node %s ends: %s", self.node, effect.reason)
        else:
            _logger.warning("%s", effect.text)

    # ---- what becomes an event --------------------------------------------------------------------------------

    def _serve_upstream(self) -> None:
        for event in self._upstream.events():
            if isinstance(event, events.Heard) and isinstance(event.message, Answer):
                answer = event.message
                self.desk.refusal = "" if answer.accepted else f"the manager does not take this node: {answer.reason}"
            self._queue.append(event)

    def _take_ends(self, ends: list[events.Gone]) -> None:
        for end in ends:
            with self._mistakes.about(f"reading the last page of rank {end.rank}"):
                last = self.pages.last_word(end.rank)
                if last is not None:
                    self._queue.append(last)
            self._queue.append(end)

    def _close(self) -> None:
        if self._stop_reason is not None:
            self._upstream.line.send(Goodbye(self._stop_reason[:MAX_TEXT]))
        self._starter.close()
        self.desk.close()
        self._hardware.close()
        self.workers.close()
        self._upstream.close()
        self._wake.close()
