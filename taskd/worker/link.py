"""The connection of a training process to its node's agent: first a hello with the beat page, then orders and reports.

One daemon thread does everything slow. It connects, has an agent started if there is none (or if it died), finds the
key, and introduces the process again after every lost connection. The training thread only stores into its page or
sends a datagram that does not block. A failure here costs a log line: monitoring is fail-open, and nothing raises into
training. A forked child inherits none of it: its descriptors are closed, and every method does nothing.

Each part has a module of its own: the socket (channel.py), how to get one (connector.py), what this process says about
itself (introduction.py), what was answered (registration.py), the key (keyshare.py) and the counters of rails
(counters_shown.py). It does NOT decide what an order means (the function in `on_message` does).
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable

from taskd import _native, log
from taskd.comm import rail_engine
from taskd.config import Config
from taskd.core.messages import (
    PauseOrder,
    RailOrder,
    RanksEnded,
    StackAsked,
    StackTold,
    ToSession,
    ToWorker,
    WorkerLeaving,
    WorkerWelcome,
)
from taskd.core.types import Phase
from taskd.core.words import cut
from taskd.wire import local
from taskd.worker import whereabouts
from taskd.worker.channel import Channel
from taskd.worker.connector import Connector
from taskd.worker.counters_shown import ShownCounters
from taskd.worker.identity import Identity
from taskd.worker.introduction import Introduction
from taskd.worker.keyshare import KeyLooks, KeyShare
from taskd.worker.pausing import Pausing
from taskd.worker.rails import RailFollower
from taskd.worker.registration import Registration

HELLO_AGAIN_SECONDS = 1.0
"""A hello is sent again if it was not answered, or if it was refused: the other holder of the rank may end."""
_logger = log.get(__name__)


class Link:
    """The link of one training process: `start()` it, `wait()` for the manager's answer, `close()` it at the end. Its
    parts tell what happened."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        framework: str = "pt",
        records: tuple[int, ...] = (),
        launched: bool = False,
    ) -> None:
        """`records` are descriptors of further memory files that the agent keeps beyond this process' life. `launched`:
        the agent is the launcher, which has the key and is never started from here."""
        self.on_message: Callable[[ToSession], None] | None = None
        """Called in the link's thread."""
        self.page = _native.Page.create(identity.rank, identity.incarnation)
        self.page.store(0, -1, int(Phase.SETUP))
        self.channel = Channel(identity)
        self.connector = Connector(config, identity, launched)
        self.introduction = Introduction(identity, framework, self.page, records)
        self.registration = Registration(identity.rank)
        self.counters = ShownCounters(self.channel, self.introduction, self.registration)
        self._keys = KeyLooks(KeyShare(config, identity, wanted=not launched))
        self.pausing = Pausing(identity.rank, self.page, self.channel.say)
        self._rails = RailFollower(identity.rank, config.worker.inner == "rail")
        self._beat_ns = config.worker.beat_period_ms * 1_000_000
        self._hello_at = 0.0
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        for fd in (self._wake, *records):
            _native.close_on_fork(fd)
        self._thread = threading.Thread(target=self._run, name="taskd-link", daemon=True)

    # ---- for the training process -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to beat and to connect; returns at once."""
        self.page.start_beat(self._beat_ns)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait until the manager has acknowledged this rank; False when the time is over or this is a forked child."""
        return self.channel.ours() and self.registration.wait(seconds)

    def leave(self, reason: str) -> None:
        """Say that this process ends in good order. The beat goes on to the very end. It lets the agent read the exit
        code before the process' parent takes it."""
        if not self._closing:
            who = self.introduction
            self.channel.say(WorkerLeaving(who.identity.rank, who.incarnation, cut(reason)))

    def be_ready_to_end(self) -> None:
        """End the key looks before the interpreter ends: the thread goes on, and must not be in torch's store then."""
        if self.channel.ours():
            self._keys.share.close()

    def close(self) -> None:
        """End the connection and the beat; return when the thread has ended (soon: nothing in it waits long)."""
        if self.channel.ours():
            self._end()
            if self._thread.is_alive() and self._thread is not threading.current_thread():
                self._thread.join(5)

    def _end(self) -> None:
        with self.channel.lock:
            if self._closing:
                return
            self._closing = True
            os.eventfd_write(self._wake, 1)
        self.registration.end()
        if self.page.beating:
            self.page.stop_beat()

    # ---- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
        except Exception:
            # A bug in this thread may cost the monitoring of one rank, but not its training.
            _logger.exception("taskd's link to the node's agent has ended by a mistake of its own; training goes on")
        finally:
            self.pausing.end()
            self.channel.close()
            self.counters.close()
            with self.channel.lock:
                self._closing = True
                _native.keep_on_fork(self._wake)
                os.close(self._wake)
            self.registration.end()

    def _turn(self) -> None:
        now = time.monotonic()
        if self.channel.socket is None and now >= self.connector.due_at:
            self._connect()
        if now >= self._keys.due_at and self._keys.look(now, self.registration.acknowledged):
            self._hello_at = 0.0
        if self.channel.socket is not None and not self.registration.acknowledged and now >= self._hello_at:
            self._hello_at = time.monotonic() + HELLO_AGAIN_SECONDS
            self.channel.say(self.introduction.hello(self._keys.share.key), self.introduction.descriptors)
        if self._poll():
            self._receive()

    def _poll(self) -> bool:
        """Wait until there is something to do. Return whether the agent has sent something."""
        line = self.channel.socket
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        if line is not None:
            poller.register(line, select.POLLIN)
        due = [self._keys.due_at] if not self._keys.share.settled else []
        if line is None:
            due.append(self.connector.due_at)
        elif not self.registration.acknowledged:
            due.append(self._hello_at)
        timeout = max(0.0, min(due) - time.monotonic()) * 1000 + 1 if due else None
        ready = {fd for fd, _ in poller.poll(timeout)}
        return line is not None and line.fileno() in ready

    def _connect(self) -> None:
        found = self.connector.connect()
        if found is not None:
            self.channel.open(found)
            self._hello_at = 0.0
        elif self.connector.trouble:
            self.registration.explain(self.connector.trouble, self._keys.share.trouble)

    def _receive(self) -> None:
        try:
            for message in self.channel.received():
                self._hear(message)
        except (EOFError, local.Malformed) as end:
            _logger.info("the line to the node's agent ended (%s); connecting again", end)
            self.channel.close()
            self.registration.lost(self._keys.share.trouble)
            self.connector.pause()

    def _hear(self, message: ToWorker) -> None:
        if isinstance(message, RailOrder):
            answer = self._rails.follow(message, self.introduction.incarnation)
            if answer is not None:
                self.channel.say(answer)
            return
        if isinstance(message, PauseOrder):
            self.pausing.ordered(message, self.introduction.incarnation)
            return
        if isinstance(message, StackAsked):
            self.channel.say(StackTold(message.rank, self.introduction.incarnation, whereabouts.of_training()))
            return
        if isinstance(message, RanksEnded):
            rail_engine.ranks_have_ended(message.epoch, message.ranks)
            return
        if isinstance(message, WorkerWelcome):
            self._welcomed(message)
        if self.on_message is not None:
            self.on_message(message)

    def _welcomed(self, message: WorkerWelcome) -> None:
        self.connector.arrived()
        if message.accepted:
            self.introduction.incarnation = message.incarnation
        self.registration.answered(message, self._keys.share.trouble)
        self.counters.tell()
        self._keys.share.proven = self.registration.acknowledged
