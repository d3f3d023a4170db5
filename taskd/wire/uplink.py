"""A node's connection to the manager, or to a keeper of copies: an encrypted DEALER that reconnects by itself.

Messages describe a state and are repeated. So a message that cannot be sent now is dropped, never queued without bound.
The connection's own trouble (no answer, wrong key, no key yet) is kept as one sentence for those who wait for it.
Messages carry this connection's life and a growing number. This module does NOT know what the messages mean.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import zmq

from taskd import log
from taskd.core.messages import AboutRecords, FromAgent, StoreAsk, ToAgent
from taskd.wire import keys
from taskd.wire.codec import Envelope, Message, WireError, decode, encode

RECONNECT_MS = 100
RECONNECT_MAX_MS = 1_000
HANDSHAKE_MS = 3_000
HEARTBEAT_MS = 1_000
"""zmq's own heartbeat detects a dead host of the manager, after three heartbeats without an answer."""
SEND_QUEUE = 256
RECEIVE_QUEUE = 1_024
LAST_WORDS_MS = 300
PROBE_SECONDS = 1.0
_WATCHED = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_CONNECT_RETRIED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
_REFUSED = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_EVENT = struct.Struct("=HI")
"""zmq.utils.monitor has this, too, but it imports all of asyncio."""
_logger = log.get(__name__)


class Uplink:
    """Connects as soon as it has a key, and reconnects until `close`."""

    def __init__(self, host: str, port: int, job: str, node: str, peer: str = "manager") -> None:
        """`peer`: the name of what listens there, for sentences."""
        self.host, self.port, self._peer = host, port, peer
        self.absent = False
        """Whether there was no listener at the last try."""
        self.life = secrets.randbits(62)
        self.ready = False
        self.key: keys.Key | None = None
        self.refused = 0  # how many received messages were invalid
        self._job, self._node = job, node
        self._sequence = 0
        self._context = zmq.Context(1)
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: Any = None
        self._shaking = False  # connected, but the handshake is not complete yet
        self._trouble = ""
        self._probe: threading.Thread | None = None
        self._probe_due = 0.0

    @property
    def place(self) -> str:
        """host:port as people write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def reason(self) -> str:
        """Why there is no connection, as a sentence; empty while there is one."""
        if self.ready:
            return ""
        if self._trouble:
            return self._trouble
        if self.key is None:
            return f"the key of job {self._job} is not known on this node yet"
        return f"no {self._peer} answers at {self.place} yet"

    def sources(self) -> list[Any]:
        """The sockets to poll for reading."""
        return [source for source in (self._socket, self._monitor) if source is not None]

    def use(self, key: keys.Key) -> None:
        """Use this key from now on. A connection that is up is left alone, whatever the key is."""
        if self.ready or (self.key is not None and self.key.secret == key.secret):
            return
        self._hang_up(0)
        self.key, self._trouble = key, ""
        line: zmq.Socket[bytes] = self._context.socket(zmq.DEALER)
        line.setsockopt(zmq.LINGER, 0)
        line.setsockopt(zmq.IMMEDIATE, 1)  # nothing is queued for a manager that is not there
        line.setsockopt(zmq.SNDHWM, SEND_QUEUE)
        line.setsockopt(zmq.RCVHWM, RECEIVE_QUEUE)
        line.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
        line.setsockopt(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        line.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MS)
        line.setsockopt(zmq.CONNECT_TIMEOUT, HANDSHAKE_MS)
        line.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        line.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        line.setsockopt(zmq.IPV6, 1)
        line.setsockopt(zmq.PROBE_ROUTER, 1)  # by its first message the other side sees that we hold the key
        key.protect_client(line)
        self._monitor = line.get_monitor_socket(_WATCHED)
        self._socket = line
        line.connect(f"tcp://{self.place}")

    def changes(self) -> Iterator[bool]:
        """The changes since the last call: True each time the connection came up, False each time it was lost."""
        while self._monitor is not None and self._monitor.poll(0):
            event, _value = _EVENT.unpack(self._monitor.recv_multipart()[0])
            if event == zmq.EVENT_CONNECTED:
                self._shaking = True
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._shaking, self._trouble, self.ready, self.absent = False, "", True, False
                yield True
            elif event in _REFUSED or (event == zmq.EVENT_DISCONNECTED and self._shaking):
                self._shaking = False
                self._trouble = (
                    f"the {self._peer} at {self.place} does not accept this node's key: another job's, or an old one"
                )
            elif event == zmq.EVENT_CONNECT_RETRIED and not self.ready:
                self.absent = True
                self._trouble = self._trouble or f"there is no {self._peer} at {self.place}"
            elif event == zmq.EVENT_DISCONNECTED and self.ready:
                self.ready = False
                yield False

    def tick(self) -> None:
        """Without a key, find out whether there is a listener at all, so that the workers can be told."""
        now = time.monotonic()
        if self.key is None and now >= self._probe_due and (self._probe is None or not self._probe.is_alive()):
            self._probe_due = now + PROBE_SECONDS
            # This runs in its own thread: resolving a name may take seconds, and nothing here may wait that long.
            self._probe = threading.Thread(target=self._look, name="taskd-probe", daemon=True)
            self._probe.start()

    def _look(self) -> None:
        try:
            socket.create_connection((self.host, self.port), HANDSHAKE_MS / 1000).close()
            found = (
                f"the manager at {self.place} runs, but the key of job {self._job} has not reached this node: "
                "give it by TASKD_KEY_FILE, or start taskd after torch.distributed is initialised"
            )
        except socket.gaierror as error:
            found = f"the manager's host {self.host} cannot be found ({error.strerror})"
        except OSError as error:
            found = f"there is no manager at {self.place} ({(error.strerror or str(error)).lower()})"
        if self.key is None:
            self._trouble = found

    def send(self, message: FromAgent | StoreAsk | AboutRecords) -> bool:
        """Send the message if the connection is up and has room; False if the message was dropped."""
        if not self.ready or self._socket is None:
            return False
        self._sequence += 1
        data = encode(message, Envelope(self._job, self._node, self.life, self._sequence))
        try:
            self._socket.send(data, zmq.DONTWAIT)
        except zmq.Again:
            return False
        return True

    def messages(self) -> Iterator[ToAgent]:
        """The messages from the manager to the agent that have arrived."""
        for message in self.received():
            if isinstance(message, ToAgent):
                yield message
            else:
                self.refused += 1

    def received(self) -> Iterator[Message]:
        """All messages that have arrived."""
        while self._socket is not None:
            try:
                frames = self._socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            found = decode(frames[-1])
            if isinstance(found, WireError):
                self.refused += 1
                log.once(
                    _logger, 30, f"wire {found.kind}", "the manager sent something that is no message: %s", found.reason
                )
            else:
                yield found[1]

    def close(self) -> None:
        """Allow a short time to send the last messages, then close."""
        self._hang_up(LAST_WORDS_MS if self.ready else 0)
        self._context.term()

    def _hang_up(self, linger_ms: int) -> None:
        if self._socket is not None:
            self._socket.disable_monitor()
            self._monitor.close(0)
            self._socket.close(linger_ms)
        self._socket = self._monitor = None
        self.ready = self._shaking = False
