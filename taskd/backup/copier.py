"""Sends each local record to another node, before a gradient of its step leaves the rank.

A record that only its own node has is lost with the node. So the training thread also writes it to a connection with
the keeper of copies on another node. That is one system call; it wakes no thread and waits for nothing. The kernel
delivers these bytes even if this process and its launcher are killed in the next moment. So the keeper has every record
that a gradient may depend on. The one exception is data in flight when a whole host fails. A record larger than the
kernel's buffers (some MiB) is written in pieces, and the training thread waits while the keeper reads them.

Failure modes: a keeper that is gone (a thread finds the next one, training goes on, the copy is behind); a keeper that
does not read (the training thread waits a moment once, then closes the connection); a record that is too large (said
once).
It does NOT know what a record means.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence

from taskd import _native, log
from taskd.backup import copy_frame
from taskd.backup.copy_frame import CHALLENGE_BYTES, Frame
from taskd.core import limits

CONNECT_SECONDS = 2.0
RETRY_SECONDS = 0.5
SEND_SECONDS = 1.0
"""How long the training thread waits for a keeper that does not read, before it goes on without it.

It waits only once, because the next connection begins with a message of the keeper."""
SLOWEST_BYTES = 32 << 20
"""For a large record the training thread waits one second more per this many bytes."""
_logger = log.get(__name__)


class Copier:
    """One rank's connection with a keeper. Call `start` once, then `send` from the training thread for each record.

    It never raises into training. Call `stop` before the process ends."""

    def __init__(
        self, places: Sequence[tuple[str, int]], key: bytes, rank: int, incarnation: int, lineage: int
    ) -> None:
        """`places`: the addresses of the keepers, in the order in which they are tried."""
        self._places, self._key = places, key
        self._rank, self._incarnation, self._lineage = rank, incarnation, lineage
        self._lock = threading.Lock()  # guards the connection; the thread below only ever makes one
        self._socket: socket.socket | None = None
        self._challenge = b""
        self._number = 0
        self._sent: bytes | None = None  # the last record sent over this connection
        self._broken = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._connect, name="taskd-copier", daemon=True)

    def start(self) -> None:
        """Start the thread that connects now and again after each broken connection."""
        self._broken.set()
        self._thread.start()

    def stop(self) -> None:
        """Close the connection and end the thread; returns when that is done."""
        self._stopped.set()
        with self._lock:
            if self._socket is not None:
                self._hang_up(self._socket)
        self._broken.set()
        self._thread.join()

    @property
    def connected(self) -> bool:
        """Whether there is a connection, so that `send` hands its data to the kernel."""
        return self._socket is not None

    def send(self, slot: int, step: int, data: bytes) -> None:
        """Write one slot to the connection; nothing is sent while there is none."""
        if len(data) > limits.MAX_COPY:
            text = "the local record of rank %d has %d bytes, at most %d are copied: it does not survive its node"
            log.once(_logger, logging.WARNING, "copy-large", text, self._rank, len(data), limits.MAX_COPY)
            return
        with self._lock:
            if self._socket is None:
                return
            try:
                self._give(self._socket, slot, step, data)
            except OSError as error:  # a part of the slot may have been sent: this connection cannot be used any more
                log.once(_logger, logging.INFO, f"copy {error}", "the keeper of copies does not take any: %s", error)
                self._hang_up(self._socket)
                return
            self._sent = data

    def _give(self, sock: socket.socket, slot: int, step: int, data: bytes) -> None:
        same = self._sent == data
        left = b"" if same else data
        ends = time.monotonic() + SEND_SECONDS + len(left) / SLOWEST_BYTES
        at = 0
        while True:
            piece = left[at : at + copy_frame.PIECE]
            at += len(piece)
            more = at < len(left)
            frame = Frame(self._rank, self._incarnation, self._lineage, self._number, step, slot, same, piece, more)
            packed = copy_frame.pack(self._key, self._challenge, frame)
            sock.settimeout(max(0.001, ends - time.monotonic()))  # 0 would make the socket non-blocking
            sock.sendall(packed)
            self._number += 1
            if not more:
                return

    def _hang_up(self, sock: socket.socket) -> None:
        self._socket = None
        _native.keep_on_fork(sock.fileno())
        sock.close()
        self._broken.set()

    def _connect(self) -> None:
        """Run the thread: whenever there is no connection, connect to the first keeper that can be reached."""
        while True:
            self._broken.wait()
            if self._stopped.is_set():
                return
            if not any(self._introduce(place) for place in self._places):
                self._stopped.wait(RETRY_SECONDS)

    def _introduce(self, place: tuple[str, int]) -> bool:
        """Connect to this keeper; returns whether that worked."""
        try:
            sock = socket.create_connection(place, CONNECT_SECONDS)
        except OSError:
            return False
        _native.close_on_fork(sock.fileno())
        try:
            challenge = sock.recv(CHALLENGE_BYTES, socket.MSG_WAITALL)
            if len(challenge) == CHALLENGE_BYTES:
                sock.sendall(copy_frame.greeting(self._key, challenge))
            # Set no buffer size: the kernel grows an unset buffer far beyond the size that it lets us set.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            challenge = b""
        with self._lock:
            if len(challenge) != CHALLENGE_BYTES or self._stopped.is_set():
                _native.keep_on_fork(sock.fileno())
                sock.close()
                return False
            self._challenge, self._number, self._sent = challenge, 0, None
            self._broken.clear()
            self._socket = sock
        return True
