"""Sends copies of this node's set-up records to a neighbour, and brings records of ranks that lived elsewhere.

A rank that moves to another node needs two records. The rank copies its local record itself at every step (copier.py).
The record of its set-up is complete when training begins. The worker then signals an eventfd. A thread of this agent
offers the record to the neighbour's keeper and sends the pieces that the keeper lacks. Pieces are known by their
digest. The thread has a connection of its own, so that supervision does not wait for these transfers. Another such
connection fetches the records of a rank that is to start here (fetch.py).

Failure modes: the keeper is gone (everything is offered to the next keeper, repeatedly until that one has all); there
is no room (said once; the rank does not survive the loss of its node).
It does NOT keep records (files.py does) and decides nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import zmq

from taskd import _native, log
from taskd.backup import slots
from taskd.backup.fetch import Fetch, Fetched
from taskd.core import limits
from taskd.core.messages import RecordsAnswer, SetupOffer, SetupPiece, SetupWanted
from taskd.wire import keys
from taskd.wire.uplink import Uplink

_logger = log.get(__name__)


class Place(NamedTuple):
    """The address of a node's keeper of copies: one port for workers, one for agents."""

    host: str
    records_port: int
    port: int


@dataclass(eq=False)
class _Source:
    """One rank of this node: its set-up record, and whether the keeper has it."""

    rank: int
    incarnation: int
    lineage: int
    setup: int
    bell: int
    pieces: dict[bytes, int] = field(default_factory=dict)  # the offset of each piece, by digest
    offer: SetupOffer | None = None
    due_ns: int = 0
    settled: bool = False  # the keeper has all of it, or has no room

    @property
    def offering(self) -> bool:
        """Whether its set-up record must be offered (again)."""
        return self.offer is not None and not self.settled


class _Line:
    """A connection to the first of several keepers that answers."""

    def __init__(self, job: str, node: str, key: keys.Key, places: Sequence[Place], now: int) -> None:
        self._who, self._key, self._places, self.at = (job, node), key, places, 0
        self._began_ns = now
        self.uplink = self._connect()

    def turn(self, at: int, now: int) -> None:
        """Connect to another keeper."""
        self.uplink.close()
        self.at = at % len(self._places)
        self._began_ns = now
        self.uplink = self._connect()

    def _connect(self) -> Uplink:
        place = self._places[self.at]
        uplink = Uplink(place.host, place.port, *self._who, peer="keeper of copies")
        uplink.use(self._key)
        return uplink

    def came(self, now: int) -> bool:
        """Whether the connection has just been made."""
        came = any(list(self.uplink.changes()))
        if self.uplink.ready:
            self._began_ns = now
        return came

    def silent(self, now: int) -> bool:
        """Whether this keeper has not answered within its time."""
        return not self.uplink.ready and now >= self._ends_ns

    @property
    def last(self) -> bool:
        """Whether this is the last keeper in the order of trying."""
        return self.at == len(self._places) - 1

    @property
    def due_ns(self) -> int | None:
        """When to look again even if nothing arrives."""
        return None if self.uplink.ready else self._ends_ns

    @property
    def _ends_ns(self) -> int:
        return self._began_ns + (limits.KEEPER_ABSENT_NS if self.uplink.absent else limits.KEEPER_PATIENCE_NS)


class Copies:
    """The copies of one node. A thread runs from `start` to `stop` and calls `arrived`.

    The other public methods are for the agent's thread."""

    def __init__(
        self, job: str, node: str, key: keys.Key, places: Sequence[Place], arrived: Callable[[Fetched], None]
    ) -> None:
        """`places`: the keepers of this node's own records, in the order in which they are tried."""
        self._who, self._key, self._places = (job, node), key, places
        self._arrived = arrived
        self._line: _Line | None = None
        self._stopping = False
        self._posted: deque[_Source | tuple[Fetch, Sequence[Place]]] = deque()
        self._sources: dict[int, _Source] = {}
        self._fetches: dict[int, tuple[Fetch, _Line]] = {}
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        for fd in (self._epoll.fileno(), self._wake):
            _native.close_on_fork(fd)
        self._thread = threading.Thread(target=self._run, name="taskd-copies", daemon=True)

    # ---- the agent's thread -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def keep(self, rank: int, incarnation: int, record: int, setup: int, bell: int) -> None:
        """Copy this rank's set-up once its eventfd `bell` is signalled. The caller's descriptors stay its own.

        Raises OSError."""
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

    def fetch(self, rank: int, last_life: int, places: Sequence[Place]) -> None:
        """Fetch the records of this rank from one of these keepers, and hand the result to `arrived`.

        Records of incarnation `last_life` are preferred."""
        self._posted.append((Fetch(rank, last_life, time.monotonic_ns() + limits.DEADLINE_COPY_NS), places))
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
        try:
            while not self._stopping:
                poller = zmq.Poller()
                lines = [line for _, line in self._fetches.values()] + ([self._line] if self._line is not None else [])
                for source in (self._epoll.fileno(), *(one for line in lines for one in line.uplink.sources())):
                    poller.register(source, zmq.POLLIN)
                poller.poll(self._wait_ms())
                self._turn(time.monotonic_ns())
        except Exception:
            _logger.exception("the copies of this node's records end by a mistake of their own; nobody else is hurt")
        finally:
            for source in self._sources.values():
                self._close(source)
            for _, line in self._fetches.values():
                line.uplink.close()
            if self._line is not None:
                self._line.uplink.close()

    def _turn(self, now: int) -> None:
        while self._posted:
            self._begin(self._posted.popleft(), now)
        for fd, _ in self._epoll.poll(0):
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(fd)
            for source in self._sources.values():
                if source.bell == fd and source.offer is None:
                    self._read(source)
        self._serve_sources(now)
        for fetch, line in list(self._fetches.values()):
            self._serve_fetch(fetch, line, now)

    def _wait_ms(self) -> int | None:
        due = [min(fetch.due_ns, fetch.ends_ns) for fetch, line in self._fetches.values() if line.uplink.ready]
        due += [line.due_ns for _, line in self._fetches.values() if line.due_ns is not None]
        if self._line is not None:
            if self._line.due_ns is not None:
                due.append(self._line.due_ns)
            else:
                due += [source.due_ns for source in self._sources.values() if source.offering]
        return max(0, -(-(min(due) - time.monotonic_ns()) // limits.MS)) if due else None

    def _begin(self, posted: _Source | tuple[Fetch, Sequence[Place]], now: int) -> None:
        if not isinstance(posted, _Source):
            fetch, places = posted
            if not places:
                fetch.give_up("no other node was named that keeps them")
                assert fetch.done is not None
                self._arrived(fetch.done)
            elif fetch.rank not in self._fetches:
                self._fetches[fetch.rank] = fetch, _Line(*self._who, self._key, places, now)
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
        """Read the record of the set-up and prepare its offer. Training has begun, so the record is complete."""
        length = min(os.fstat(source.setup).st_size, limits.MAX_SETUP_COPY)
        digests = []
        for at in range(0, length, limits.SETUP_PIECE):
            digest = hashlib.sha256(os.pread(source.setup, limits.SETUP_PIECE, at)).digest()
            digests.append(digest)
            source.pieces[digest] = at
        source.offer = SetupOffer(source.rank, source.incarnation, source.lineage, length, tuple(digests))

    def _serve_sources(self, now: int) -> None:
        """Offer the set-ups that the keeper does not have yet, and send the pieces that it asks for."""
        if self._line is None:
            if not self._places or not any(source.offering for source in self._sources.values()):
                return
            self._line = _Line(*self._who, self._key, self._places, now)
        if self._line.silent(now):
            self._line.turn(self._line.at + 1, now)
        if self._line.came(now):
            for source in self._sources.values():  # it may be another keeper, or one that was restarted
                source.settled, source.due_ns = False, 0
        for message in self._line.uplink.received():
            if isinstance(message, SetupWanted):
                self._wanted(self._line.uplink, message)
        for source in self._sources.values():
            if source.offering and source.due_ns <= now and self._line.uplink.ready:
                assert source.offer is not None
                self._line.uplink.send(source.offer)
                source.due_ns = now + limits.COPY_REPEAT_NS

    def _wanted(self, line: Uplink, wanted: SetupWanted) -> None:
        source = self._sources.get(wanted.rank)
        if source is None or source.lineage != wanted.lineage or not source.offering:
            return
        source.settled = not (wanted.kept and wanted.digests)
        if not wanted.kept:
            text = "no other node has room for the record of rank %d's set-up: the rank will not survive its node"
            _logger.warning(text, wanted.rank)
        for digest in wanted.digests:
            if (at := source.pieces.get(digest)) is not None:
                line.send(SetupPiece(os.pread(source.setup, limits.SETUP_PIECE, at)))
        source.due_ns = 0

    # ---- fetches ----------------------------------------------------------------------------------------------

    def _serve_fetch(self, fetch: Fetch, line: _Line, now: int) -> None:
        if line.came(now):
            fetch.due_ns = 0
        for message in line.uplink.received():
            if isinstance(message, (RecordsAnswer, SetupPiece)):
                fetch.hear(message, line.at)
        if fetch.done is None and (fetch.passed or line.silent(now)):
            at = fetch.next_after(line.at, line.last, line.uplink.reason)
            if at is not None:
                line.turn(at, now)
        if fetch.done is None and fetch.due_ns <= now and line.uplink.ready:
            line.uplink.send(fetch.question(now))
        fetch.look(now, line.uplink.reason)
        if fetch.done is not None:
            del self._fetches[fetch.rank]
            line.uplink.close()
            self._arrived(fetch.done)
