"""The manager's front door: one ROUTER socket under CURVE; it accepts or refuses peers and reports lost connections.

libzmq asks by ZAP which peers may connect, and reports each connection's state on a monitor socket. The manager's own
loop serves both, so there is no second thread to race with. News are handed on as `Arrived` and `Lost`. A refused peer
is always counted, and logged once per address. A message carries the descriptor of its connection (ZMQ_SRCFD). The
monitor names the same descriptor when a connection ends, so the lost connection can be identified. Connections that
have not proved the key are limited in number and bytes (wire/strangers.py).

It does NOT decode messages, and it knows neither nodes nor the core.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass

import zmq

from taskd import log
from taskd.core import limits
from taskd.errors import UsageError
from taskd.wire.keys import ZAP_ENDPOINT, Key, zap_answer
from taskd.wire.strangers import STRANGERS_MAX, UNKNOWN, Connections, End

_log = log.get(__name__)

BACKLOG = 4096
"""How many connections may wait to be accepted: all agents of a large job connect in the same second."""
MESSAGES_PER_TURN = 1024
"""How many messages are taken before deadlines are checked again."""
HANDSHAKE_MS = 10_000
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
        """`peers`: how many connections the nodes of the job have. All of them may come at once."""
        self.endpoint = f"tcp://{bind}:{port}"
        self.refusals = refusals
        self._key = key
        self._lost: list[Lost] = []
        self._poller = zmq.Poller()
        self._context = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, max(1023, 2 * peers))
        self._context.set(zmq.IPV6, 0)
        # A peer that connects while the manager ends must not delay that end: no socket lingers.
        self._context.set(zmq.BLOCKY, 0)
        self._zap = self._context.socket(zmq.ROUTER)
        self._zap.bind(ZAP_ENDPOINT)
        self._router = self._router_socket(peers)
        self._connections = Connections(self._router, peers)
        for socket in (self._zap, self._router, self._connections.monitor):
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
        self._connections.close()
        for socket in (self._router, self._zap):
            socket.close(0)
        self._context.term()
        os.close(self._wake)

    def wake(self) -> None:
        """End a `wait` from another thread or a signal handler."""
        os.eventfd_write(self._wake, 1)

    def wait(self, timeout_ms: int) -> bool:
        """Wait until something arrives, `wake` is called or the time is over. Returns whether to call `receive`: while
        there are strangers, it looks at them from time to time."""
        ready = dict(self._poller.poll(self._connections.wait_ms(timeout_ms)))
        if self._wake in ready:
            os.eventfd_read(self._wake)
        return bool(ready) or self._connections.strangers > 0

    def receive(self) -> Iterator[Arrived | Lost]:
        """The messages and lost connections since the last call, at most MESSAGES_PER_TURN messages."""
        self._answer_zap()
        self._watch()
        for _ in range(MESSAGES_PER_TURN):
            try:
                frames = self._router.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                self._connections.bound()
                break
            # The monitor announces a connection before its messages. Reading it here keeps a reused descriptor from
            # being taken for an older connection.
            if int(self._connections.monitor.get(zmq.EVENTS)) & zmq.POLLIN:
                self._watch()
            last = frames[-1]
            connection, is_first = self._connections.of(last)
            if len(frames) != 2:
                sentence = f"{connection.address} sent {len(frames) - 1} parts where a message has one"
                self.refusals.count("garbage", connection.address, sentence)
            elif len(last) or not is_first:  # an empty first message only proves the key
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
        for connection, how in self._connections.ended():
            self._lost.append(Lost(connection.number))
            if not connection.proved and how is not End.REFUSED:  # those were counted when ZAP was asked
                reason, level, words = _STRANGERS[how]
                self.refusals.count(reason, connection.address, f"{connection.address} {words}", level)


_STRANGERS = {
    End.GARBAGE: ("not taskd", logging.WARNING, "was refused: what it sent is no message of taskd"),
    End.NO_KEY: (
        "no key",
        logging.WARNING,
        "was refused: it does not hold this job's key, or looks for another job's manager",
    ),
    # Mostly a port scan, a health check or an agent that checks whether the port is open: no warning. But if two sides
    # do not agree on encryption, the other side may also be the first to close the connection.
    End.SILENT: (
        "port looked at",
        logging.INFO,
        "hung up before it had proved anything: a look at the port, or a peer without a key",
    ),
    End.CROWD: (
        "too many",
        logging.WARNING,
        f"was refused: more than {STRANGERS_MAX} connections have proved nothing, so the oldest are closed",
    ),
    End.LARGE: ("too large", logging.WARNING, "was refused: it sent more than a handshake and had proved nothing"),
}
"""By the end of a connection that had not proved the key: the reason that is counted, and what is logged."""
