"""The manager's front door: one ROUTER socket under CURVE; it accepts or refuses peers and reports lost connections.

libzmq asks by ZAP which peers may connect, and reports each connection's state on a monitor socket. The manager's own
loop serves both, so there is no second thread to race with. News are handed on as `Arrived` and `Lost`. A refused peer
is always counted, and logged once per address. A message carries the descriptor of its connection (ZMQ_SRCFD). The
monitor names the same descriptor when a connection ends, so the lost connection can be identified.

It does NOT decode messages, and it knows neither nodes nor the core.
"""

from __future__ import annotations

import logging
import os
import socket as sockets
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import zmq

from taskd import log
from taskd.core import limits
from taskd.errors import UsageError
from taskd.wire.keys import ZAP_ENDPOINT, Key, zap_answer

_log = log.get(__name__)

BACKLOG = 4096
"""How many connections may wait to be accepted: all agents of a large job connect in the same second."""
MESSAGES_PER_TURN = 1024
"""How many messages are taken before deadlines are checked again."""
HANDSHAKE_MS = 10_000
UNKNOWN = "an unknown address"
_WATCHED = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
CUT_OFF_BYTES = 2 * limits.MAX_MESSAGE_BYTES
"""libzmq closes the connection if a message is larger. A smaller message that is still too large is refused with a
sentence."""


@dataclass(frozen=True)
class Arrived:
    """A message has arrived. `routing` is for its answer, `connection` is its connection, `address` the peer's host."""

    routing: bytes
    connection: int
    address: str
    data: bytes | memoryview


@dataclass(frozen=True)
class Lost:
    """A connection has ended; everything that it had sent has arrived before."""

    connection: int


@dataclass
class _Connection:
    """One accepted connection."""

    number: int
    address: str
    spoke: bool = False


class Refusals:
    """Refused peers and messages: counted by reason, and logged once per address and reason."""

    def __init__(self) -> None:
        self.by_reason: dict[str, int] = {}
        self._said: set[tuple[str, str]] = set()

    def count(self, reason: str, address: str, sentence: str, level: int = logging.WARNING) -> None:
        """Count one more refusal for this reason, and log it if it is new."""
        self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
        key = (reason, address)
        # A peer that retries is sometimes gone before its address can be looked up: that is not worth a new line.
        if key in self._said or (address == UNKNOWN and any(said == reason for said, _ in self._said)):
            return
        if len(self._said) >= limits.MAX_UNHEARD_SENDERS:
            if len(self._said) == limits.MAX_UNHEARD_SENDERS:
                self._said.add(("", ""))
                _log.warning("too many peers were refused to name each: further ones are only counted (taskd status)")
            return
        self._said.add(key)
        _log.log(level, "%s", sentence, extra=log.facts(peer=address, reason=reason))


class Door:
    """The sockets of a manager. Everything happens in the thread that calls `wait` and `receive`."""

    def __init__(self, bind: str, port: int, key: Key, peers: int, refusals: Refusals) -> None:
        self.endpoint = f"tcp://{bind}:{port}"
        self.refusals = refusals
        self._key = key
        self._connections: dict[int, _Connection] = {}  # by descriptor, which libzmq reuses
        self._accepted = 0
        self._lost: list[Lost] = []
        self._failed = ""  # how the handshake failed of the connection that the monitor reports next
        self._poller = zmq.Poller()
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, max(1023, 2 * peers))
        self._context.set(zmq.IPV6, 0)
        # A peer that connects while the manager ends must not delay that end: no socket lingers.
        self._context.set(zmq.BLOCKY, 0)
        self._zap = self._context.socket(zmq.ROUTER)
        self._zap.bind(ZAP_ENDPOINT)
        self._router = self._router_socket(peers)
        self._monitor = self._router.get_monitor_socket(_WATCHED)
        for socket in (self._zap, self._router, self._monitor):
            self._poller.register(socket, zmq.POLLIN)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poller.register(self._wake, zmq.POLLIN)

    def _router_socket(self, peers: int) -> zmq.Socket[bytes]:
        router = self._context.socket(zmq.ROUTER)
        self._key.protect_server(router)
        router.router_mandatory = False
        router.router_handover = True
        router.linger = 0
        router.backlog = BACKLOG
        router.maxmsgsize = CUT_OFF_BYTES
        router.handshake_ivl = HANDSHAKE_MS
        # A vanished host sends nothing; its half-open connection must not stay for ever.
        router.tcp_keepalive = 1
        router.tcp_keepalive_idle = 30
        router.tcp_keepalive_intvl = 10
        router.tcp_keepalive_cnt = 3
        return router

    def open(self) -> None:
        """Listen; raises UsageError when the address is not available (its cause has the `errno`)."""
        try:
            self._router.bind(self.endpoint)
        except zmq.ZMQError as error:
            raise UsageError(f"{self.endpoint} cannot be listened on: {error.strerror}") from error

    def close(self) -> None:
        """Close every socket at once; what was not sent is lost."""
        self._router.disable_monitor()
        for socket in (self._monitor, self._router, self._zap):
            socket.close(0)
        self._context.term()
        os.close(self._wake)

    def wake(self) -> None:
        """End a `wait` from another thread or a signal handler."""
        os.eventfd_write(self._wake, 1)

    def wait(self, timeout_ms: int) -> bool:
        """Wait until something arrives, `wake` is called or the time is over; returns False if the time is over."""
        ready = dict(self._poller.poll(timeout_ms))
        if self._wake in ready:
            os.eventfd_read(self._wake)
        return bool(ready)

    def receive(self) -> Iterator[Arrived | Lost]:
        """The messages and lost connections since the last call, at most MESSAGES_PER_TURN messages."""
        self._answer_zap()
        self._watch()
        for _ in range(MESSAGES_PER_TURN):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            # The monitor announces a connection before its messages. Reading it here keeps a reused descriptor from
            # being taken for an older connection.
            if int(self._monitor.get(zmq.EVENTS)) & zmq.POLLIN:
                self._watch()
            last = frames[-1]
            connection = self._connections.get(int(last.get(zmq.SRCFD))) or _Connection(
                0, str(last.get("Peer-Address"))
            )
            connection.spoke = True
            if len(frames) != 2:
                sentence = f"{connection.address} sent {len(frames) - 1} parts where a message has one"
                self.refusals.count("garbage", connection.address, sentence)
                continue
            yield Arrived(frames[0].bytes, connection.number, connection.address, last.buffer)
        lost, self._lost = self._lost, []
        yield from lost

    def send(self, routing: bytes, data: bytes) -> None:
        """Send to a peer. If it is gone or does not read, the message is lost (orders are repeated)."""
        try:
            self._router.send_multipart([routing, data], zmq.NOBLOCK)
        except zmq.ZMQError as error:  # for a full pipe, libzmq itself drops the message; this error is unexpected
            self.refusals.count("unsendable", "any", f"a message could not be sent: {error.strerror}")

    def _answer_zap(self) -> None:
        while True:
            try:
                frames = self._zap.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # libzmq asks like a REQ socket: its routing id, an empty frame, then the request.
            reply, refused = zap_answer(frames[2:], self._key.client.public)
            if refused:
                sentence = (
                    f"{refused} was refused: it does not hold this job's key (TASKD_KEY or TASKD_KEY_FILE differs?)"
                )
                self.refusals.count("wrong key", refused, sentence)
            if reply:
                self._zap.send_multipart([*frames[:2], *reply])

    def _watch(self) -> None:
        while True:
            try:
                frames = self._monitor.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            # Parsed here as in zmq.utils.monitor: that module would import all of asyncio.
            kind, value = struct.unpack("=hi", frames[0])
            if kind == zmq.EVENT_ACCEPTED:
                self._accepted += 1
                self._connections[value] = _Connection(self._accepted, _peer_of(value))
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self._failed = "no key"
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._failed = "counted"
            elif kind == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._failed = "silent"
            elif kind == zmq.EVENT_DISCONNECTED:
                self._disconnected(value)

    def _disconnected(self, descriptor: int) -> None:
        """Note a lost connection. If it never sent a message, log what it was.

        There is one I/O thread, so a failed handshake and the end of its connection come one after the other.
        """
        failed, self._failed = self._failed, ""
        connection = self._connections.pop(descriptor, None)
        if connection is None:
            return
        address = connection.address
        self._lost.append(Lost(connection.number))
        if connection.spoke or failed == "counted":
            return
        if failed == "no key":
            sentence = f"{address} was refused: it does not hold this job's key, or looks for another job's manager"
            self.refusals.count("no key", address, sentence)
        elif failed == "silent":
            # Mostly a port scan, a health check or an agent that checks whether the port is open: no warning. But if
            # two sides do not agree on encryption, the other side may also be the first to close the connection.
            sentence = f"{address} hung up before it had proved anything: a look at the port, or a peer without a key"
            self.refusals.count("port looked at", address, sentence, logging.INFO)
        else:
            self.refusals.count("not taskd", address, f"{address} was refused: what it sent is no message of taskd")


def _peer_of(descriptor: int) -> str:
    """The host at the other end. The connection may have ended already, and its descriptor may be reused."""
    try:
        with sockets.socket(fileno=os.dup(descriptor)) as copy:
            name = copy.getpeername()
    except OSError:
        return UNKNOWN
    return str(name[0]) if isinstance(name, tuple) else UNKNOWN
