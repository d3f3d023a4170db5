"""The agent's loop: one thread, one poll, and core.Agent at its heart.

Whatever happens on the node (a worker's message, the end of a process, a link that goes down, the manager's word, a
deadline) becomes an event; the core's effects are carried out in order. Beat pages are read at each interval. The
same loop serves as a side process (`python -m taskd.agent`), which only watches, and inside a launcher, which gives
it a `Spawner` and so lets it start and end workers.
It never blocks on a worker or on the manager, and it does NOT decide anything: core.Agent does.

An error of ours in one event or effect costs that one and no other: reports and orders are repeated, and the end of
this loop would be the end of a node's ranks. One that comes all the time ends it all the same, or it would spin.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import zmq

from taskd import _native, log
from taskd.agent.deaths import Deaths
from taskd.agent.desk import Desk
from taskd.agent.interfaces import InterfaceWatch
from taskd.agent.memory_kills import MemoryKills
from taskd.agent.store import StoreRelay
from taskd.agent.workers import Worker, Workers
from taskd.backup.heirs import Heirs, Keepers
from taskd.config import Config
from taskd.core import effects, events
from taskd.core.agent import Agent
from taskd.core.budget import Budget
from taskd.core.limits import MAX_TEXT, MS, SECOND
from taskd.core.messages import (
    Answer,
    Evidence,
    Goodbye,
    Stop,
)
from taskd.core.post import Identity
from taskd.core.types import EvidenceKind, PageFlag, Phase
from taskd.core.words import cut
from taskd.errors import BackendError, UsageError
from taskd.wire import keys
from taskd.wire.uplink import Uplink

BEAT_AGE_MS_MAX = 2**31
ERRORS_MAX = 20
ERRORS_WINDOW_NS = 10 * SECOND
"""Errors of ours that this loop survives within this."""
_logger = log.get(__name__)


class Spawner(Protocol):
    """How a launcher starts and ends the workers of its node."""

    def spawn(self, seat: effects.Spawn) -> int:
        """Start a worker for this seat and return its pid at once; BackendError with a sentence when that fails."""

    def end(self, rank: int, pid: int) -> None:
        """End this worker's process without waiting for it."""

    def reap(self, pid: int) -> int | None:
        """The exit code (negative: the signal) of a worker that has ended; None when it is not this process' child."""

    def excuse(self, pid: int) -> None:
        """This worker has left in good order: should its interpreter crash in its end, that is no failure."""


class AgentLoop:
    """`run()` serves until the core says leave (or `stop`), and returns the exit code. `stop` and `post` from any
    thread."""

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
        """`slots`: how many workers the node has room for. `on_stop` is told once when the manager ends the job.
        `keepers`: a rank of this node may go on on another one, or the other way round, so records are copied."""
        self.config, self.node, self.spawner = config, node, spawner
        self.uplink = Uplink(config.manager.host, config.manager.port, config.job.id, node)
        self._store: StoreRelay | None = None
        """Only a launcher's workers meet in the job's store."""
        if spawner is not None:
            self._store = StoreRelay(config.job.id, node, config.manager.host, config.manager.port)
        self.workers = Workers()
        self.interval_ns = config.agent.beat_interval_ms * MS
        identity = Identity(
            job=config.job.id,
            node=node,
            host=os.uname().nodename,
            pid=os.getpid(),
            spawns=spawner is not None,
            slots=config.job.proc_per_node if slots is None else slots,
            interval_ns=self.interval_ns,
            linger_ns=config.agent.linger_ms * MS,
        )
        self.core = Agent(identity)
        self.left: effects.Leave | None = None
        self.others: Callable[[], Mapping[int, Callable[[], None]]] = dict
        """Further descriptors to wait for, and what to call when one is readable: a launcher has other children."""
        self.on_compiles: Callable[[], None] = lambda: None
        """Called while ranks are here that have used torch's compiler."""
        self._heirs: Heirs | None = None
        if keepers is not None:
            self._heirs = Heirs(config.job.id, node, keepers, self.workers.records, self._wake)
        self._carried = 0  # bytes, by all rails of this node
        self._interfaces = InterfaceWatch()
        self._memory = MemoryKills()
        reap, excuse = (spawner.reap, spawner.excuse) if spawner is not None else (None, None)
        self._deaths = Deaths(self.workers, reap, excuse, self._memory)
        self.desk = Desk(config.job.id, node, listener, self.workers, self._deaths, self.uplink, self._step)
        self._deaths.hear = self.desk.receive
        self._on_stop = on_stop
        self._queue: deque[events.AgentEvent] = deque()
        self._stop_reason: str | None = None
        self._errors = Budget(ERRORS_MAX, ERRORS_WINDOW_NS)
        self._ended = False
        self._wake_lock = threading.RLock()  # a signal handler may call stop() while this thread holds it
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for fd in (self._wake_read, self._wake_write, self._interfaces.fd):
            if fd >= 0:
                _native.close_on_fork(fd)
        self._find_key()

    # ---- from other threads -----------------------------------------------------------------------------------

    def stop(self, reason: str) -> None:
        """End the loop in good order, soon."""
        self._stop_reason = reason
        self._wake()

    def _wake(self) -> None:
        with self._wake_lock:
            if not self._ended:
                with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
                    os.write(self._wake_write, b"x")

    # ---- the loop ---------------------------------------------------------------------------------------------

    def start(self, seats: Sequence[effects.Spawn]) -> None:
        """Start these workers without anybody's order: a launcher's own, at the very first."""
        for seat in seats:
            self._spawn(seat)
        self._work_off()  # before any of them introduces itself: who was not started here is turned away

    def run(self) -> int:
        """Serve; returns the exit code that the core gave, 0 when stopped."""
        if self._store is not None:
            self._store.start()
        if self._heirs is not None:
            self._heirs.start()
        try:
            while self.left is None and self._stop_reason is None:
                self._turn()
        finally:
            self._close()
        return self.left.exit_code if self.left is not None else 0

    def _turn(self) -> None:
        ready = self._poll()
        now = time.monotonic_ns()
        if self.workers.watch.fd in ready:
            self._deaths.take(now)
        if self._wake_read in ready:
            os.read(self._wake_read, 4096)
        self._serve_uplink()
        self._serve_heirs()
        if self.desk.fd in ready:
            self.desk.accept()
        for worker in list(self.workers.by_pid.values()):
            if worker.connection is not None and worker.connection.fileno() in ready:
                self.desk.receive(worker)
            if worker.pidfd in ready:
                self._deaths.ended(worker)
        if self._interfaces.fd in ready:
            self._serve_interfaces()
        for fd, serve in self.others().items():
            if fd in ready:
                serve()
        now = time.monotonic_ns()
        self._take_ends(self._deaths.found(now))
        deadline = self.core.next_deadline()
        if deadline is not None and now >= deadline:
            # One look per tick, just before it: what is reported is fresh, and a quiet node wakes once per interval.
            self._scan(now)
            self._queue.append(events.Tick())
        self._work_off()
        self._deaths.forget()
        self.desk.tell_reason(now)

    def _poll(self) -> set[object]:
        poller = zmq.Poller()
        fds = [self.workers.watch.fd, self._wake_read, self.desk.fd, self._interfaces.fd]
        for worker in self.workers.by_pid.values():
            fds.append(worker.pidfd)
            if worker.connection is not None:
                fds.append(worker.connection.fileno())
        for source in (*fds, *self.others(), *self.uplink.sources()):
            if source != -1:
                poller.register(source, zmq.POLLIN)
        due = [at for at in (self.core.next_deadline(), self._deaths.next_check_ns()) if at is not None]
        wait_ms = max(0, -(-(min(due, default=0) - time.monotonic_ns()) // MS))
        return {source for source, _ in poller.poll(wait_ms)}

    def _work_off(self) -> None:
        while self._queue:
            self._step(self._queue.popleft())

    def _step(self, event: events.AgentEvent, asker: Worker | None = None) -> None:
        try:
            wanted = self.core.step(time.monotonic_ns(), event)
        except Exception:
            self._survive(event)
            return
        for effect in wanted:
            try:
                self._carry_out(effect, asker)
            except Exception:
                self._survive(effect)

    def _survive(self, what: object) -> None:
        """To be called where an error of ours was caught: it is said, and the loop goes on, if that makes sense."""
        if not self._errors.take(time.monotonic_ns()):
            raise  # noqa: PLE0704  the error that is being handled
        _logger.exception("%s failed: a mistake of taskd's; this node goes on without it", cut(repr(what)))

    def _carry_out(self, effect: effects.AgentEffect, asker: Worker | None) -> None:
        if isinstance(effect, effects.Send):
            self.uplink.send(effect.message)
        elif isinstance(effect, effects.Relay):
            self.desk.relay(effect, asker)
        elif isinstance(effect, effects.Refuse):
            worker = self.workers.by_pid.get(effect.pid)
            if worker is not None:
                self.desk.tell(worker, effect.message)
        elif isinstance(effect, effects.Spawn):
            self._spawn(effect)
        elif isinstance(effect, effects.End):
            self._end_worker(effect)
        elif isinstance(effect, effects.Leave):
            self.left = effect
            _logger.info("the agent of node %s ends: %s", self.node, effect.reason)
        else:
            _logger.warning("%s", effect.text)

    # ---- the manager ------------------------------------------------------------------------------------------

    def _find_key(self) -> None:
        manager = self.config.manager
        # A key in the run directory may be an older job's; the workers know which one is theirs.
        if manager.key or manager.key_file or self.spawner is not None:
            try:
                found = keys.find(self.config)
            except UsageError as error:
                _logger.warning("%s", error)
                return
            if found is not None:
                self.uplink.use(found)

    def _serve_uplink(self) -> None:
        if self.uplink.key is not None and self._store is not None:
            self._store.use(self.uplink.key)
        for came in self.uplink.changes():
            self._queue.append(events.Connected() if came else events.Disconnected())
        for message in self.uplink.messages():
            if isinstance(message, Stop) and self._on_stop is not None:
                self._on_stop(message)
                self._on_stop = None
            if isinstance(message, Answer):
                self.desk.refusal = "" if message.accepted else f"the manager does not take this node: {message.reason}"
            self._queue.append(events.Heard(message))
        self.uplink.tick()

    # ---- the launcher's workers -------------------------------------------------------------------------------

    def _serve_heirs(self) -> None:
        for seat, reason in self._heirs.settled() if self._heirs is not None else ():
            if reason:
                self._queue.append(events.StartFailed(seat.rank, seat.incarnation, cut(reason)))
            else:
                self._start(seat)

    def _spawn(self, seat: effects.Spawn) -> None:
        if self._heirs is None or self._heirs.ready(seat):
            self._start(seat)

    def _start(self, seat: effects.Spawn) -> None:
        assert self.spawner is not None, "only an agent that spawns is told to"
        try:
            pid = self.spawner.spawn(seat)
        except BackendError as error:
            self._queue.append(events.StartFailed(seat.rank, seat.incarnation, cut(str(error))))
            return
        self._queue.append(events.Started(seat.rank, seat.incarnation, pid))
        worker = self.workers.meet(pid)
        if worker is None:
            code = self.spawner.reap(pid)
            reason = "it ended as soon as it was started"
            self._queue.append(events.Gone(seat.rank, seat.incarnation, 255 if code is None else code, reason))
            return
        self.workers.seat(worker, seat.rank, seat.incarnation)

    def _end_worker(self, effect: effects.End) -> None:
        worker = self.workers.by_rank.get(effect.rank)
        if self._heirs is not None and self._heirs.unwanted(effect.rank, effect.incarnation):
            self._queue.append(events.StartFailed(effect.rank, effect.incarnation, cut(effect.reason)))
            return
        if self.spawner is None or worker is None or worker.incarnation != effect.incarnation:
            _logger.info("rank %d is to end (%s); this agent did not start it", effect.rank, effect.reason)
            return
        self.spawner.end(effect.rank, worker.pid)

    # ---- looking ----------------------------------------------------------------------------------------------

    def _scan(self, now: int) -> None:
        """Read every page once; a beat that is overdue makes the process' state be looked up."""
        self._memory.look(now)
        watched = [
            worker for worker in self.workers.by_rank.values() if worker.page is not None and not worker.reported
        ]
        beats = _native.scan([worker.page for worker in watched if worker.page is not None])
        rails = self.workers.rails.read(now)
        if rails:
            self._carried = sum(line.bytes_out + line.bytes_in for line in rails)
        repaired = self.core.post.order is not None  # a job in which nothing has happened is not looked at any closer
        readings = []
        for worker, beat in zip(watched, beats, strict=True):
            if beat is None or beat.beat_count == 0:
                continue
            age_ns = max(0, now - beat.beat_ns)
            if age_ns > self._deaths.overdue_ns(beat.beat_period_ns):
                self._deaths.doubt(worker, now)
            work = worker.effort.look(now, self._carried) if repaired else 0
            readings.append(_reading(worker, beat, age_ns, work))
            if beat.flags & PageFlag.COMPILES:
                self.on_compiles()
        if readings or rails:
            self._queue.append(events.Readings(tuple(readings), rails))

    def _take_ends(self, ends: list[events.Gone]) -> None:
        """Processes have ended; where in its step one has left is in the last word that it wrote."""
        for end in ends:
            worker = self.workers.by_rank.get(end.rank)
            if worker is not None and worker.page is not None:
                (beat,) = _native.scan([worker.page])
                if beat is not None and beat.beat_count:
                    self._queue.append(events.Readings((_reading(worker, beat, 0, worker.effort.work),), ()))
            self._queue.append(end)

    def _serve_interfaces(self) -> None:
        for name, up in self._interfaces.changes():
            kind = EvidenceKind.LINK_UP if up else EvidenceKind.LINK_DOWN
            reason = f"interface {name} of node {self.node} is {'up' if up else 'down'}"
            _logger.info("%s", reason)
            self._queue.append(events.WorkerSaid(Evidence(kind, -1, 0, -1, 0, cut(reason))))

    def _close(self) -> None:
        if self._stop_reason is not None:
            self.uplink.send(Goodbye(self._stop_reason[:MAX_TEXT]))
        if self._heirs is not None:
            self._heirs.stop()
        self.desk.close()
        self._interfaces.close()
        self.workers.close()
        self.uplink.close()
        if self._store is not None:
            self._store.stop()
        with self._wake_lock:
            self._ended = True
            for fd in (self._wake_read, self._wake_write):
                _native.keep_on_fork(fd)
                os.close(fd)


def _reading(worker: Worker, beat: _native.Beat, age_ns: int, work: int) -> events.Reading:
    """A look at a page as the core takes it; a page may hold any numbers, the core only sound ones."""
    step = max(-1, min(beat.step, 2**62))
    return events.Reading(
        rank=worker.rank,
        incarnation=worker.incarnation,
        epoch=min(beat.epoch, 2**31 - 1),
        step=step,
        phase=Phase(beat.phase) if beat.phase in _PHASES else Phase.SETUP,
        beat_age_ms=min(age_ns // MS, BEAT_AGE_MS_MAX),
        step_ms=worker.note_step(step, beat.progress_ns, beat.phase == Phase.PARKED),
        work=work,
        compiling=bool(beat.flags & PageFlag.COMPILING),
    )


_PHASES = frozenset(int(phase) for phase in Phase)
