"""The workers' side of the store relay: connections on a socket, with one operation at a time on each.

Bytes become operations, which are handed on. Answers become bytes (wire/store_frame.py defines the format). The
socket's name may still belong to an earlier agent of this node, or descriptors may run out: then it listens later. A
client loses its connection if it breaks the rules, belongs to another user, or is one too many, or if a bug of taskd
shows while it is served (mistakes.py). If a connection ends while its operation is unanswered, `lose` is called.

It does NOT know what happens to an operation (store_requests.py), and never blocks.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from taskd import _native, log
from taskd.core import limits
from taskd.core.types import StoreStatus as Status
from taskd.mistakes import Mistakes
from taskd.wire import local, store_frame

READ_BYTES = 256 * 1024
LISTEN_RETRY_NS = 100 * limits.MS
_logger = log.get(__name__)


@dataclass(eq=False)
class Client:
    """One connection of a worker."""

    sock: socket.socket
    pid: int
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    asks: bool = False  # it has an unanswered operation


class Clients:
    """All connections of workers. Poll `fd` for reading, then call `serve`."""

    def __init__(
        self,
        name: str,
        hear: Callable[[Client, store_frame.Frame], None],
        lose: Callable[[Client], None],
        mistakes: Mistakes,
    ) -> None:
        """`hear` takes an operation. `lose` is called for a client that goes before its operation is answered."""
        self._name, self._mistakes = name, mistakes
        self._hear, self._lose = hear, lose
        self._listener: socket.socket | None = None
        self._accepts = False
        self._listen_at_ns = 0
        self._by_fd: dict[int, Client] = {}
        self._epoll = select.epoll()
        self.fd = self._epoll.fileno()
        _native.close_on_fork(self.fd)

    def listen(self) -> None:
        """Listen on the name. If an earlier agent of this node still has it, listen later."""
        if self._listener is None:
            self._listener = self._bound()
        if self._listener is None:
            self._listen_at_ns = time.monotonic_ns() + LISTEN_RETRY_NS
            return
        self._epoll.register(self._listener, select.EPOLLIN)
        self._accepts = True

    def next_deadline(self) -> int | None:
        """When to call `listen` again; None if it listens already."""
        return None if self._accepts else self._listen_at_ns

    def serve(self) -> None:
        """Accept, read and write on the connections that are ready."""
        for fd, mask in self._epoll.poll(0):
            if self._listener is not None and fd == self._listener.fileno():
                with self._mistakes.about("letting a worker in to the job's store"):
                    self._accept()
            elif fd in self._by_fd:
                with self.about(self._by_fd[fd]):
                    self._serve(self._by_fd[fd], mask)

    @contextmanager
    def about(self, client: Client) -> Iterator[None]:
        """A context for serving this client. If that raises, it loses its connection, and can make another one."""
        with self._mistakes.about(f"serving process {client.pid} at the job's store"):
            try:
                yield
            except Exception:
                self._drop(client)
                raise

    def reply(self, client: Client, status: Status, amount: int, items: tuple[bytes, ...]) -> None:
        """Answer the operation of this client."""
        client.asks = False
        client.outgoing += store_frame.answer(status, amount, items)
        try:
            self._write(client)
        except OSError:
            self._drop(client)

    def close(self) -> None:
        """Close every connection and the name."""
        with contextlib.ExitStack() as ends:  # each of them happens, even if another one raises
            ends.callback(self._epoll.close)
            ends.callback(_native.keep_on_fork, self.fd)
            if self._listener is not None:
                ends.callback(self._hang_up, self._listener)
                self._listener = None
            for client in list(self._by_fd.values()):
                ends.callback(self._drop, client)

    def _bound(self) -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.bind(self._name)
            sock.listen(local.BACKLOG)
        except OSError as error:
            sock.close()
            why = "another agent of this node has its socket" if error.errno == errno.EADDRINUSE else error.strerror
            log.once(_logger, logging.INFO, "store-bind", "the job's store is not served here yet: %s", why)
            return None
        _native.close_on_fork(sock.fileno())
        return sock

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # out of descriptors: to ask again at once would be a busy loop
            log.once(_logger, logging.WARNING, "store-accept", "a worker cannot reach the job's store: %s", error)
            self._epoll.unregister(self._listener)
            self._accepts, self._listen_at_ns = False, time.monotonic_ns() + LISTEN_RETRY_NS
            return
        if len(self._by_fd) >= limits.MAX_STORE_CLIENTS or not local.same_user(sock):
            log.once(
                _logger,
                logging.WARNING,
                "store-refused",
                "process %d of user %d was not let in to the job's store: it is another user, or one of more than %d",
                *local.peer(sock),
                limits.MAX_STORE_CLIENTS,
            )
            sock.close()
            return
        self._by_fd[sock.fileno()] = client = Client(sock, local.peer(sock)[0])
        try:
            sock.setblocking(False)
            _native.close_on_fork(sock.fileno())
            self._epoll.register(sock, select.EPOLLIN)
        except Exception:
            self._drop(client)
            raise

    def _serve(self, client: Client, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT:
                self._write(client)
            if mask & ~select.EPOLLOUT:
                self._read(client)
        except store_frame.Malformed as error:
            log.once(
                _logger,
                logging.WARNING,
                f"store-malformed {error}",
                "process %d broke the rules of the job's store: %s",
                client.pid,
                error,
            )
            self._drop(client)
        except OSError:
            self._drop(client)

    def _read(self, client: Client) -> None:
        try:
            data = client.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._drop(client)
            return
        if client.asks or client.outgoing:
            raise store_frame.Malformed("it asked again before it was answered")
        client.incoming += data
        frame = store_frame.whole(client.incoming)
        if frame is None:
            return
        client.incoming = bytearray()
        if frame.trouble:
            self.reply(client, Status.FAILED, 0, (frame.trouble.encode(),))
            return
        client.asks = True
        self._hear(client, frame)

    def _write(self, client: Client) -> None:
        waited = len(client.outgoing)
        with contextlib.suppress(BlockingIOError):
            del client.outgoing[: client.sock.send(client.outgoing, socket.MSG_NOSIGNAL)]
        if client.outgoing or waited:
            self._epoll.modify(client.sock, select.EPOLLIN | (select.EPOLLOUT if client.outgoing else 0))

    def _drop(self, client: Client) -> None:
        if self._by_fd.pop(client.sock.fileno(), None) is None:
            return
        try:
            if client.asks:
                client.asks = False
                self._lose(client)
        finally:
            self._hang_up(client.sock)

    def _hang_up(self, sock: socket.socket) -> None:
        # Closing is not enough: a forked child that has not yet run its fork handlers may hold the same socket.
        with contextlib.suppress(FileNotFoundError):  # it is not watched
            self._epoll.unregister(sock)
        _native.keep_on_fork(sock.fileno())
        sock.close()
