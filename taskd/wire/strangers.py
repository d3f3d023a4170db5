"""Bounds what a port of libzmq spends on connections that have not proved that they hold the job's key.

libzmq has no quota. It accepts every connection and waits for its handshake. Failure modes: silent connections take all
descriptors of the process, and libzmq then tries to accept the next one without a pause; a stranger announces a message
of the greatest length, for which room is made before any key is checked; a crowd keeps the job's own peers out. So all
connections are followed on libzmq's monitor. If more strangers come than are expected, the oldest one is closed, of the
address that has the most. One that sends more than a handshake needs is closed, too.

The monitor does not say whose handshake is complete. So a connection has proved itself with its first message, and our
own peers send an empty one at once (ZMQ_PROBE_ROUTER). The descriptor is libzmq's, which may close and reuse it at any
time. So a connection is closed by shutdown() on a copy, after its peer's address and port were compared.
It does NOT check keys: libzmq does, and asks keys.zap_answer.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import zmq

from taskd.core.limits import MS

STRANGERS_MAX = 64
"""How many connections may be unproved at once, in addition to the expected ones."""
HANDSHAKE_BYTES = 4096
"""More than a peer sends before its proof."""
LOOK_MS = 50
"""How often it is checked how much strangers have sent."""
LARGE_LOOKS = 10
"""At how many looks in a row one must have sent too much. A proof may have come whose message waits for our thread."""
LOOK_SHARE = 20
"""Looks may take this part of the thread's time at most."""
EVENTS_PER_TURN = 8192
"""How many of the monitor's events are taken before others get their turn."""
UNKNOWN = "an unknown address"
_WATCHED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_RECEIVED = struct.Struct("=128xQ")
"""The number of bytes received, in Linux' struct tcp_info."""


class End(Enum):
    """How a connection has ended that had not proved itself."""

    GARBAGE = "it sent what is no handshake"
    NO_KEY = "its handshake failed"
    REFUSED = "it was refused by its key"
    SILENT = "it hung up, or its time for a handshake was over"
    CROWD = "it was the oldest one of too many"
    LARGE = "it sent more than a handshake"


_FAILURES = {
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: End.NO_KEY,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: End.REFUSED,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: End.SILENT,
}


@dataclass(eq=False)
class Connection:
    """One accepted connection. `peer`: address and port at its other end, if they could still be read."""

    number: int
    address: str
    peer: object = None
    proved: bool = False
    large: int = 0
    """At how many looks in a row it had sent more than a handshake."""
    closed: End | None = None
    """Why it was closed here."""


class Connections:
    """All connections of one listening socket. Poll `monitor` for reading, then take `ended`, then call `bound`.

    Call all of it from one thread."""

    def __init__(self, listener: zmq.Socket[bytes], expected: int = 0) -> None:
        """`expected`: how many peers of the job may come at once. All of them may come although all are here: a
        firewall that has forgotten their connections leaves the old ones half open."""
        self._listener, self._expected = listener, expected
        self.proved = 0
        self._count = 0
        self._by_descriptor: dict[int, Connection] = {}  # libzmq reuses descriptors
        self._strangers: dict[str, dict[Connection, int]] = {}
        """By address, the oldest first; with their descriptors."""
        self._how: End | None = None  # how the handshake failed of the connection that the monitor reports next
        self._look_at_ns = 0
        # A descriptor of our own, into which those of libzmq are copied: when none is free, strangers must go first.
        # AF_UNIX, since Python gives the kernel room for an address of this kind, and that is the longest one.
        self._copy, self._blank = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        address = f"inproc://connections-{id(self)}"
        listener.monitor(address, _WATCHED)
        self.monitor: zmq.Socket[bytes] = listener.context.socket(zmq.PAIR)
        # Without a bound: otherwise libzmq's thread would wait for room, and `close` for that thread, for ever.
        self.monitor.rcvhwm = 0
        self.monitor.connect(address)

    def close(self) -> None:
        """Stop to watch. Call it before the listening socket is closed."""
        self._listener.monitor(None, 0)
        self.monitor.close(0)
        self._copy.close()
        self._blank.close()

    @property
    def strangers(self) -> int:
        """How many connections have not proved themselves."""
        return sum(map(len, self._strangers.values()))

    def of(self, message: zmq.Frame) -> tuple[Connection, bool]:
        """The connection that this message came on, and whether it is its first one, by which it has proved itself."""
        descriptor = int(message.get(zmq.SRCFD))
        connection = self._by_descriptor.get(descriptor)
        if connection is None:  # it has ended meanwhile
            return Connection(0, str(message.get("Peer-Address")), proved=True), True
        is_first = not connection.proved
        if is_first:
            connection.proved = True
            self.proved += 1
            self._no_stranger(connection)
        return connection, is_first

    def ended(self) -> Iterator[tuple[Connection, End]]:
        """The connections that have ended since the last call, and how: meaningless for those that were proved."""
        for _ in range(EVENTS_PER_TURN):
            try:
                frames = self.monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # Parsed here as in zmq.utils.monitor: that module would import all of asyncio.
            kind, value = struct.unpack("=hi", frames[0])
            if kind == zmq.EVENT_ACCEPTED:
                self._came(value)
            elif kind == zmq.EVENT_DISCONNECTED:
                # There is one I/O thread, so a failed handshake and the end of its connection come one after the other.
                how, self._how = self._how or End.GARBAGE, None
                connection = self._by_descriptor.pop(value, None)
                if connection is not None:
                    self._no_stranger(connection)
                    self.proved -= connection.proved
                    yield connection, connection.closed or how
            else:
                self._how = _FAILURES.get(kind)

    def wait_ms(self, longest_ms: int) -> int:
        """How long to wait at most before `bound` is called again."""
        if not self._strangers:
            return longest_ms
        return LOOK_MS if longest_ms < 0 else min(longest_ms, LOOK_MS)

    def bound(self) -> None:
        """Close strangers that are too many, or send too much. Call it when all messages that came have been taken."""
        over = self.strangers - STRANGERS_MAX - self._expected
        for _ in range(over):
            crowd = max(self._strangers.values(), key=len)
            self._shut(next(iter(crowd)), End.CROWD)
        now = time.monotonic_ns()
        if not self._strangers or now < self._look_at_ns:
            return
        for connection, descriptor in [one for crowd in self._strangers.values() for one in crowd.items()]:
            large = self._received(connection, descriptor) > HANDSHAKE_BYTES
            connection.large = connection.large + 1 if large else 0
            if connection.large >= LARGE_LOOKS:
                self._shut(connection, End.LARGE)
        self._look_at_ns = now + max(LOOK_MS * MS, LOOK_SHARE * (time.monotonic_ns() - now))

    # ---- one connection ---------------------------------------------------------------------------------------

    def _came(self, descriptor: int) -> None:
        self._count += 1
        peer: object = None
        try:
            peer = self._look(descriptor).getpeername()
        except OSError:
            pass  # it has ended already
        finally:
            self._look_away()
        address = str(peer[0]) if isinstance(peer, tuple) else UNKNOWN
        connection = self._by_descriptor[descriptor] = Connection(self._count, address, peer)
        self._strangers.setdefault(address, {})[connection] = descriptor

    def _no_stranger(self, connection: Connection) -> None:
        crowd = self._strangers.get(connection.address, {})
        crowd.pop(connection, None)
        if not crowd:
            self._strangers.pop(connection.address, None)

    def _shut(self, connection: Connection, why: End) -> None:
        descriptor = self._strangers[connection.address][connection]
        self._no_stranger(connection)
        connection.closed = why
        try:
            copy = self._look(descriptor)
            if copy.getpeername() == connection.peer:
                copy.shutdown(socket.SHUT_RDWR)  # libzmq takes it for the other side's end
        except OSError:
            pass  # it has ended already
        finally:
            self._look_away()

    def _received(self, connection: Connection, descriptor: int) -> int:
        try:
            copy = self._look(descriptor)
            if copy.getpeername() != connection.peer:
                return 0
            found = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED.size)
        except OSError:
            return 0
        finally:
            self._look_away()
        return int(_RECEIVED.unpack(found)[0]) if len(found) == _RECEIVED.size else 0

    def _look(self, descriptor: int) -> socket.socket:
        os.dup2(descriptor, self._copy.fileno(), inheritable=False)
        return self._copy

    def _look_away(self) -> None:
        # A copy that is kept would keep the connection open when libzmq closes it.
        os.dup2(self._blank.fileno(), self._copy.fileno(), inheritable=False)
