"""Receives copies of local records: a separate thread reads what workers write, and never answers.

Workers write a record at least twice in a step and do not wait. So this thread only has to keep up on average. Unread
data stays in the kernel's buffers, and `drain` reads it before a copy is handed out. A bug of taskd costs one
connection, which is closed and made again (mistakes.py).
It does NOT keep copies (keeper_records.py does) or decide who needs them.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import logging
import os
import secrets
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field

from taskd import log
from taskd.backup import copy_frame
from taskd.backup.copy_frame import CHALLENGE_BYTES, GREETING_BYTES
from taskd.backup.keeper_records import Records
from taskd.core import limits
from taskd.mistakes import Mistakes

READ_BYTES = 1 << 20
CONNECTIONS_MAX = 2 * limits.MAX_NODES
STRANGERS_MAX = 64
DRAIN_SECONDS = 0.5
"""How long the last words of a lost node are read at most."""
FULL_SECONDS = 0.1
"""How long no connection is accepted after descriptors have run out."""
_logger = log.get(__name__)


@dataclass(eq=False)
class _Worker:
    """One connection of a worker."""

    sock: socket.socket
    address: str
    challenge: bytes
    greeted: bool = False
    """Whether it has proved that it belongs to the job."""
    number: int = 0
    incoming: bytearray = field(default_factory=bytearray)
    slots: copy_frame.Joined = field(default_factory=copy_frame.Joined)


class CopyDoor:
    """Receives copies from `start` to `stop`. `lock` is held while `records` change: other users must take it, too."""

    def __init__(self, listener: socket.socket, key: bytes, records: Records) -> None:
        self.lock = threading.Lock()
        self._listener, self._key, self._records = listener, key, records
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._waiter = selectors.DefaultSelector()  # waits for `_selector` without holding the lock
        self._waiter.register(self._selector.fileno(), selectors.EVENT_READ)
        self._stopping = False
        self._strangers: dict[_Worker, None] = {}
        """Connections that have not greeted yet, the oldest first."""
        self._opens_at: float | None = None
        """When to accept connections again after descriptors ran out; None: they are accepted now."""
        self._mistakes = Mistakes(_logger, "its connection is closed, and copies of other ranks are taken on")
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="taskd-copy-door", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def drain(self) -> None:
        """Read everything that has arrived from workers, for a bounded time: strangers may come without end. The caller
        holds `lock`."""
        ends_at = time.monotonic() + DRAIN_SECONDS
        while not self._closed and self._read_all() and time.monotonic() < ends_at:
            pass

    def stop(self) -> None:
        """Close everything."""
        if self._thread.ident is None:
            self._close_all()
        else:
            self._stopping = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._waiter.select(None if self._opens_at is None else max(0.0, self._opens_at - time.monotonic()))
                with self.lock:
                    self._read_all()
                    self._open_again()
        except Exception:
            _logger.exception("this node takes no copies of records any longer, by a mistake of its own")
        finally:
            # Workers must see that their copies are not taken: their connections must not stay open unread.
            with self.lock:
                self._close_all()

    def _close_all(self) -> None:
        self._closed = True
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Worker):
                key.data.sock.close()
        self._waiter.close()
        self._selector.close()
        self._listener.close()

    def _read_all(self) -> bool:
        """Serve every connection once; returns whether something arrived that may come from a worker."""
        came = False
        for key, _ in self._selector.select(0):
            if key.fileobj is self._listener:
                with self._mistakes.about("letting in a worker with its copies"):
                    self._accept()
                came = True
            elif isinstance(key.data, _Worker) and key.data.sock.fileno() >= 0:  # `_accept` may have just closed it
                with self._mistakes.about(f"taking copies from {key.data.address}"):
                    self._serve(key.data)
                came |= key.data.greeted
        return came

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except OSError as error:
            log.once(_logger, logging.WARNING, f"copy-accept {error}", "a worker's copies are not taken: %s", error)
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._selector.unregister(self._listener)  # else it would be ready all the time
                self._opens_at = time.monotonic() + FULL_SECONDS
            return
        worker = _Worker(sock, str(address[0]), secrets.token_bytes(CHALLENGE_BYTES))
        try:
            self._let_in(worker)
        except Exception:
            self._close(worker)
            raise

    def _let_in(self, worker: _Worker) -> None:
        sock = worker.sock
        if len(self._selector.get_map()) >= CONNECTIONS_MAX:
            sock.close()
            return
        if len(self._strangers) >= STRANGERS_MAX:
            self._close(next(iter(self._strangers)))
        self._strangers[worker] = None
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, worker)
        with contextlib.suppress(OSError):  # a connection that is already closed is noticed at the next read
            sock.send(worker.challenge)

    def _open_again(self) -> None:
        if self._opens_at is not None and time.monotonic() >= self._opens_at:
            self._selector.register(self._listener, selectors.EVENT_READ)
            self._opens_at = None

    def _serve(self, worker: _Worker) -> None:
        """Read from this connection. If that raises, close it: what it has sent would raise again and again."""
        try:
            self._read(worker)
        except Exception:
            self._close(worker)
            raise

    def _read(self, worker: _Worker) -> None:
        try:
            data = worker.sock.recv(READ_BYTES if worker.greeted else GREETING_BYTES - len(worker.incoming))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        worker.incoming += data
        try:
            if worker.greeted:
                self._take(worker)
            elif len(worker.incoming) == GREETING_BYTES:
                self._greet(worker)
        except copy_frame.Malformed as error:
            text = "a connection of %s for copies of records was closed: %s"
            log.once(_logger, logging.WARNING, f"copy {worker.address} {error}", text, worker.address, error)
            data = b""
        if not data:
            self._close(worker)

    def _greet(self, worker: _Worker) -> None:
        if not hmac.compare_digest(worker.incoming, copy_frame.greeting(self._key, worker.challenge)):
            raise copy_frame.Malformed("it has another key")
        worker.incoming.clear()
        worker.greeted = True
        del self._strangers[worker]

    def _take(self, worker: _Worker) -> None:
        while (frame := copy_frame.take(self._key, worker.challenge, worker.number, worker.incoming)) is not None:
            worker.number += 1
            slot = worker.slots.add(frame)
            if slot is not None:
                self._records.take(slot)

    def _close(self, worker: _Worker) -> None:
        self._strangers.pop(worker, None)
        with contextlib.suppress(KeyError, ValueError):  # it was not watched yet, or is closed already
            self._selector.unregister(worker.sock)
        worker.sock.close()
