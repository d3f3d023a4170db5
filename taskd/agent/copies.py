"""Sends copies of this node's set-up records to the manager, and brings records of ranks that lived elsewhere.

A rank that is to go on on another node needs its local record, which it copies itself at every step (copier.py of the
worker), and the record of its set-up, which is whole when training begins: the worker then rings an eventfd, and a
thread of this agent offers the record to the manager and sends the pieces that it lacks, known by their digest, on a
line of its own so that supervision waits for nobody's bytes. The same line fetches the records of a rank that is to
start here (fetch.py).

Failure modes: the manager is away (everything is offered again when it is back, and again until it has all), there is
no room (said once; the rank does not survive its node).
It does NOT keep records (agent.workers does) and decides nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import zmq

from taskd import _native, log
from taskd.agent.fetch import Fetch, Fetched
from taskd.agent.uplink import Uplink
from taskd.core import limits
from taskd.core.messages import RecordsAnswer, SetupOffer, SetupPiece, SetupWanted
from taskd.wire import keys, slots

_logger = log.get(__name__)


@dataclass(eq=False)
class _Source:
    """One rank of this node: its set-up, and whether the manager has it."""

    rank: int
    incarnation: int
    lineage: int
    setup: int
    bell: int
    pieces: dict[bytes, int] = field(default_factory=dict)  # by digest, where each begins
    offer: SetupOffer | None = None
    due_ns: int = 0
    settled: bool = False  # the manager has all of it, or no room

    @property
    def offering(self) -> bool:
        """Whether there is something to be offered (again)."""
        return self.offer is not None and not self.settled


class Copies:
    """A thread from `start` to `stop`, which calls `arrived`; the other methods are for the agent's thread."""

    def __init__(self, job: str, node: str, host: str, port: int, arrived: Callable[[Fetched], None]) -> None:
        self._line = Uplink(host, port, job, node)
        self._arrived = arrived
        self._key: keys.Key | None = None
        self._stopping = False
        self._posted: deque[_Source | Fetch] = deque()
        self._sources: dict[int, _Source] = {}
        self._fetches: dict[int, Fetch] = {}
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        for fd in (self._epoll.fileno(), self._wake):
            _native.close_on_fork(fd)
        self._thread = threading.Thread(target=self._run, name="taskd-copies", daemon=True)

    # ---- the agent's thread -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to copy."""
        self._thread.start()

    def use(self, key: keys.Key) -> None:
        """Speak to the manager with this key from now on."""
        if key is not self._key:
            self._key = key
            os.eventfd_write(self._wake, 1)

    def keep(self, rank: int, incarnation: int, record: int, setup: int, bell: int) -> None:
        """Copy this rank's set-up once its bell rings; the caller's descriptors stay its own. Raises OSError."""
        own = [os.dup(setup)]
        try:
            own.append(os.dup(bell))
        except OSError:
            os.close(own[0])
            raise
        for fd in own:
            _native.close_on_fork(fd)
        self._posted.append(_Source(rank, incarnation, slots.lineage(record), own[0], own[1]))
        os.eventfd_write(self._wake, 1)

    def fetch(self, rank: int) -> None:
        """Bring the records of this rank's life on another node; `arrived` is told what came of it."""
        self._posted.append(Fetch(rank, time.monotonic_ns() + limits.DEADLINE_COPY_NS))
        os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """End the thread and close everything; returns when that is done."""
        if self._thread.ident is not None:
            self._stopping = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        for posted in self._posted:
            if isinstance(posted, _Source):
                self._close(posted)
        for fd in (self._wake, self._epoll.fileno()):
            _native.keep_on_fork(fd)
        os.close(self._wake)
        self._epoll.close()

    # ---- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        poller = zmq.Poller()
        registered: list[object] = []
        try:
            while not self._stopping:
                sources = [self._epoll.fileno(), *self._line.sources()]
                if sources != registered:
                    poller, registered = zmq.Poller(), sources
                    for source in sources:
                        poller.register(source, zmq.POLLIN)
                poller.poll(self._wait_ms())
                self._turn()
        except Exception:
            _logger.exception("the copies of this node's records end by a mistake of their own; nobody else is hurt")
        finally:
            for source in self._sources.values():
                self._close(source)
            self._line.close()

    def _turn(self) -> None:
        while self._posted:
            self._begin(self._posted.popleft())
        for fd, _ in self._epoll.poll(0):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(fd)
            for source in self._sources.values():
                if source.bell == fd and source.offer is None:
                    self._read(source)
        if self._key is not None and self._line.key is not self._key:
            self._line.use(self._key)
        for came in self._line.changes():
            for source in self._sources.values() if came else ():
                source.settled, source.due_ns = False, 0
        for message in self._line.received():
            if isinstance(message, SetupWanted):
                self._wanted(message)
            elif isinstance(message, (RecordsAnswer, SetupPiece)):
                for fetch in self._fetches.values():
                    fetch.hear(message)
        self._look(time.monotonic_ns())

    def _wait_ms(self) -> int | None:
        due = [min(fetch.due_ns, fetch.ends_ns) for fetch in self._fetches.values()]
        if self._line.ready:
            due += [source.due_ns for source in self._sources.values() if source.offering]
        return max(0, -(-(min(due) - time.monotonic_ns()) // limits.MS)) if due else None

    def _begin(self, posted: _Source | Fetch) -> None:
        if isinstance(posted, Fetch):
            self._fetches[posted.rank] = posted
            return
        before = self._sources.pop(posted.rank, None)
        if before is not None:
            if (before.lineage, before.incarnation) == (posted.lineage, posted.incarnation):  # the same hello again
                posted.pieces, posted.offer, posted.settled = before.pieces, before.offer, before.settled
            self._close(before)
        self._sources[posted.rank] = posted
        self._epoll.register(posted.bell, select.EPOLLIN)

    def _close(self, source: _Source) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._epoll.unregister(source.bell)
        for fd in (source.setup, source.bell):
            _native.keep_on_fork(fd)
            os.close(fd)

    # ---- set-ups ----------------------------------------------------------------------------------------------

    @staticmethod
    def _read(source: _Source) -> None:
        """Training has begun, so the record of the set-up is closed."""
        length = min(os.fstat(source.setup).st_size, limits.MAX_SETUP_COPY)
        digests = []
        for at in range(0, length, limits.SETUP_PIECE):
            digest = hashlib.sha256(os.pread(source.setup, limits.SETUP_PIECE, at)).digest()
            digests.append(digest)
            source.pieces[digest] = at
        source.offer = SetupOffer(source.rank, source.incarnation, source.lineage, length, tuple(digests))

    def _wanted(self, wanted: SetupWanted) -> None:
        source = self._sources.get(wanted.rank)
        if source is None or source.lineage != wanted.lineage or not source.offering:
            return
        source.settled = not (wanted.kept and wanted.digests)
        if not wanted.kept:
            text = "the manager has no room for the record of rank %d's set-up: the rank will not survive its node"
            _logger.warning(text, wanted.rank)
        for digest in wanted.digests:
            if (at := source.pieces.get(digest)) is not None:
                self._line.send(SetupPiece(os.pread(source.setup, limits.SETUP_PIECE, at)))
        source.due_ns = 0

    # ---- what is repeated -------------------------------------------------------------------------------------

    def _look(self, now: int) -> None:
        """Offers and questions that are due, and fetches that have come to an end."""
        for source in self._sources.values():
            if source.offering and source.due_ns <= now and self._line.ready:
                assert source.offer is not None
                self._line.send(source.offer)
                source.due_ns = now + limits.COPY_REPEAT_NS
        for fetch in list(self._fetches.values()):
            if fetch.done is None and fetch.due_ns <= now:
                self._line.send(fetch.question(now))
            fetch.look(now, self._line.reason)
            if fetch.done is not None:
                del self._fetches[fetch.rank]
                self._arrived(fetch.done)
