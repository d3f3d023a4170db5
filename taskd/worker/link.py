"""A training process' line to its node's agent: hello with the beat page, then orders in, news out, for the whole run.

One daemon thread does everything slow: it connects, starts an agent where there is none (and again when it died),
finds the key, introduces the process anew after every break. The training thread only ever stores into its page or
sends a datagram that does not block. Whatever fails here costs a log line: monitoring is fail-open, nothing raises
into training. A forked child inherits none of it: the descriptors are closed in it, and every method does nothing.
It does NOT decide what an order means (whoever passes `on_message` does).
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable

from taskd import _native, log
from taskd.config import Config
from taskd.core.messages import (
    CountersShown,
    FromWorker,
    RailOrder,
    ToSession,
    ToWorker,
    WorkerHello,
    WorkerLeaving,
    WorkerWelcome,
)
from taskd.core.types import Phase, Stage
from taskd.core.words import cut
from taskd.errors import BackendError
from taskd.wire import local
from taskd.wire.codec import Envelope, WireError, decode, encode
from taskd.worker.activation import start_agent
from taskd.worker.identity import Identity
from taskd.worker.keyshare import KeyShare
from taskd.worker.rails import RailFollower

RETRY_MS = 50
RETRY_MAX_MS = 2_000
HELLO_AGAIN_SECONDS = 1.0
"""A hello that is not answered is said again; one that was refused, too: the other holder of the rank may end."""
KEY_LOOK_MS = 100
KEY_LOOK_SLOW_MS = 1_000
KEY_EAGER_SECONDS = 30.0
AGENT_SILENT = "this node's agent has not answered yet"
_logger = log.get(__name__)


class Link:
    """One per training process. `start()`, `wait()` for the manager's word, `say()` what happened, `close()` at the
    end."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        framework: str = "pt",
        on_message: Callable[[ToSession], None] | None = None,
        records: tuple[int, ...] = (),
        launched: bool = False,
    ) -> None:
        """`on_message` runs in the link's thread. `records` are descriptors of further memory files that the agent
        keeps beyond this process' life. `launched`: the agent is the launcher, which has the key and is never started
        from here."""
        self.identity = identity
        self.incarnation = identity.incarnation
        self.epoch = 0
        self.stage = Stage.RUNNING
        self.accepted = False
        self.acknowledged = False
        self.reason = AGENT_SILENT
        self.on_message = on_message
        self.late = False  # somebody has been told that this rank is not registered, so the end of that is news
        self.page = _native.Page.create(identity.rank, identity.incarnation)
        self.page.store(0, -1, int(Phase.SETUP))
        self._config = config
        self._framework = framework
        self._records = records
        self._pid = os.getpid()
        self._life = secrets.randbits(62)
        self._sequence = 0
        self._socket: socket.socket | None = None
        self._lock = threading.RLock()  # of the socket and the message numbers; a signal handler may speak, too
        self._changed = threading.Condition()
        self._closing = False
        self._wake_read, self._wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        for fd in (self._wake_read, self._wake_write, *records):
            _native.close_on_fork(fd)
        self._launched = launched
        self._rails = RailFollower(identity.rank, config.worker.inner == "rail")
        self._counters: dict[str, int] = {}  # by transport: descriptor of what its rails count, ours alone
        self._share = KeyShare(config, identity, wanted=not launched)
        self._thread = threading.Thread(target=self._run, name="taskd-link", daemon=True)
        self._retry_ms = RETRY_MS
        self._retry_at = 0.0
        self._hello_at = 0.0
        self._look_at = 0.0
        self._began = time.monotonic()

    # ---- for the training process -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to beat and to connect; returns at once."""
        self.page.start_beat(self._config.worker.beat_period_ms * 1_000_000)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the manager has acknowledged this rank; False when the time is over or this is a forked child."""
        if not self._ours():
            return False
        with self._changed:
            self._changed.wait_for(lambda: self.acknowledged or self._closing, seconds)
        return self.acknowledged

    def say(self, message: FromWorker) -> bool:
        """Send one message to the agent without ever blocking; False when it could not be sent now."""
        if not self._ours():
            return False
        with self._lock:
            return self._send(message)

    def unread(self) -> bool:
        """Whether the agent has yet to take what was said to it: one that does not run takes nothing."""
        if not self._ours():
            return False
        with self._lock:
            return self._socket is not None and local.unread(self._socket) > 0

    unattended = False
    """The launcher, which is this node's agent, listens no more: nobody here will hear of anything."""

    def show_counters(self, transport: str, fd: int) -> None:
        """Hand what the rails of this transport count to the agent, now and whenever it welcomes us anew."""
        if not self._ours():
            return
        with self._lock:
            self._drop_counters(transport)
            if self._closing:
                return
            try:
                self._counters[transport] = os.dup(fd)
            except OSError as error:
                _logger.warning("the rails of this process cannot be counted: %s", error)
                return
            _native.close_on_fork(self._counters[transport])
            self._tell_counters()

    def _tell_counters(self) -> None:
        with self._lock:
            for transport, fd in self._counters.items() if self.accepted else ():
                self._send(CountersShown(self.identity.rank, self.incarnation, transport), (fd,))

    def _drop_counters(self, transport: str) -> None:
        fd = self._counters.pop(transport, -1)
        if fd >= 0:
            _native.keep_on_fork(fd)
            os.close(fd)

    def leave(self, reason: str) -> None:
        """Say that this process ends in good order. The beat goes on to the very end: it is what lets the agent read
        the exit code before the process' parent takes it."""
        if self._ours() and not self._closing:
            self.say(WorkerLeaving(self.identity.rank, self.incarnation, cut(reason)))

    def be_ready_to_end(self) -> None:
        """To be called before the interpreter ends, since the thread does not: what cannot be left from inside is."""
        if self._ours():
            self._share.close()

    def close(self) -> None:
        """End the line and the beat; returns when the thread has ended (soon: nothing in it waits long)."""
        if self._ours():
            self._end()
            if self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join(5)

    def _end(self) -> None:
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
            os.write(self._wake_write, b"x")
        if self.page.beating:
            self.page.stop_beat()

    def _ours(self) -> bool:
        return os.getpid() == self._pid

    # ---- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except Exception:
            # A mistake in here must cost the monitoring of one rank, not its training.
            _logger.exception("taskd's link to the node's agent has ended by a mistake of its own; training goes on")
        finally:
            self._hang_up()
            with self._lock:
                for transport in list(self._counters):
                    self._drop_counters(transport)
            with self._changed:
                self._closing = True
                self._changed.notify_all()
                for fd in (self._wake_read, self._wake_write):
                    _native.keep_on_fork(fd)
                    os.close(fd)

    def _turn(self) -> None:
        now = time.monotonic()
        if self._socket is None and now >= self._retry_at:
            self._connect()
        if now >= self._look_at:
            self._look(now)
        if self._socket is not None and not self.acknowledged and now >= self._hello_at:
            self._hello()
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        if self._socket is not None:
            poller.register(self._socket, select.POLLIN)
        due = [self._look_at] if not self._share.settled else []
        if self._socket is None:
            due.append(self._retry_at)
        elif not self.acknowledged:
            due.append(self._hello_at)
        timeout = max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None
        ready = {fd for fd, _ in poller.poll(timeout)}
        if self._socket is not None and self._socket.fileno() in ready:
            self._receive()

    def _connect(self) -> None:
        """Connect to the agent; where there is none, start one."""
        name = local.address(self.identity.job, self.identity.node)
        try:
            found = local.connect(name)
            if found is None and not self._launched:
                listener = local.listen(name)
                if listener is not None:
                    with listener:
                        _native.close_on_fork(listener.fileno())
                        try:
                            start_agent(listener, self._config, self.identity)
                        finally:
                            _native.keep_on_fork(listener.fileno())
                found = local.connect(name)
        except (BackendError, OSError) as error:
            self._set_reason(str(error))
            log.once(_logger, logging.WARNING, "agent-start", "%s; taskd keeps trying and training goes on", error)
            found = None
        self.unattended = found is None and self._launched and local.nobody_listens(name)
        if found is None:
            self._retry_at = time.monotonic() + self._retry_ms / 1000
            self._retry_ms = min(2 * self._retry_ms, RETRY_MAX_MS)
            return
        _native.close_on_fork(found.fileno())
        with self._lock:
            self._socket = found
        self._hello_at = 0.0

    def _hang_up(self) -> None:
        with self._lock:
            if self._socket is not None:
                _native.keep_on_fork(self._socket.fileno())
                self._socket.close()
                self._socket = None

    def _look(self, now: float) -> None:
        before = self._share.key
        key = self._share.look()
        if key != before:
            self._hello_at = 0.0
        found = self.acknowledged and bool(key) and not self._share.hands_on
        slow = now - self._began > KEY_EAGER_SECONDS or found
        self._look_at = now + (KEY_LOOK_SLOW_MS if slow else KEY_LOOK_MS) / 1000

    def _hello(self) -> None:
        self._hello_at = time.monotonic() + HELLO_AGAIN_SECONDS
        hello = WorkerHello(
            job=self.identity.job,
            rank=self.identity.rank,
            world_size=self.identity.world_size,
            local_rank=self.identity.local_rank,
            pid=self._pid,
            incarnation=self.incarnation,
            framework=self._framework,
            epoch=self.epoch,
            stage=self.stage,
            key=self._share.key,
        )
        with self._lock:
            self._send(hello, (self.page.fd, *self._records))

    def _send(self, message: FromWorker | CountersShown, descriptors: tuple[int, ...] = ()) -> bool:
        if self._socket is None:
            return False
        self._sequence += 1
        identity = self.identity
        data = encode(message, Envelope(identity.job, identity.node, self._life, self._sequence))
        try:
            return local.send(self._socket, data, descriptors)
        except OSError:  # the agent is gone; the thread sees the end of the line and connects again
            return False

    def _receive(self) -> None:
        assert self._socket is not None
        try:
            while (got := local.receive(self._socket)) is not None:
                data, descriptors = got
                local.close_all(descriptors)
                found = decode(data)
                if isinstance(found, WireError):
                    log.once(
                        _logger, logging.WARNING, found.kind, "the agent sent something unreadable: %s", found.reason
                    )
                elif isinstance(found[1], ToWorker):
                    self._hear(found[1])
        except (EOFError, local.Malformed) as end:
            _logger.info("the line to the node's agent ended (%s); connecting again", end)
            self._hang_up()
            with self._changed:
                self.accepted = self.acknowledged = False
            self._set_reason(AGENT_SILENT)
            # An agent that ends right after it was started must not be started in a tight loop.
            self._retry_at = time.monotonic() + self._retry_ms / 1000
            self._retry_ms = min(2 * self._retry_ms, RETRY_MAX_MS)

    def _hear(self, message: ToWorker) -> None:
        if isinstance(message, RailOrder):
            answer = self._rails.follow(message, self.incarnation)
            if answer is not None:
                self.say(answer)
            return
        if isinstance(message, WorkerWelcome):
            self._welcomed(message)
        if self.on_message is not None:
            self.on_message(message)

    def _welcomed(self, message: WorkerWelcome) -> None:
        self._retry_ms = RETRY_MS
        with self._changed:
            was = self.acknowledged
            self.accepted, self.acknowledged = message.accepted, message.accepted and message.acknowledged
            if message.accepted:
                self.incarnation = message.incarnation
            self._changed.notify_all()
        self._tell_counters()
        self._set_reason(message.reason)
        self._share.proven = self.acknowledged
        if self.acknowledged and not was:
            level = logging.WARNING if self.late else logging.INFO
            self.late = False
            _logger.log(level, "rank %d is registered with the manager now", self.identity.rank)

    def _set_reason(self, reason: str) -> None:
        self.reason = "" if self.acknowledged else self._share.trouble or reason or self.reason
