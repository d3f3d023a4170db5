"""The node's end of the job's store: takes operations from workers on a socket and has the manager carry them out.

A thread of its own with a line of its own to the manager, so that a slow store never holds up supervision, nor the
other way round. What is not answered is asked again (at once when the line comes back), which the manager is prepared
for; what stays unanswered until its time is over is answered here, with the reason. A worker that goes away takes its
wait with it. One connection carries one operation at a time (wire/store_frame.py has its form).

It does NOT keep values or know what operations do: taskd.manager.store does.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import threading
import time
from dataclasses import dataclass, field

import zmq

from taskd import _native, log
from taskd.core import limits
from taskd.core.messages import StoreAnswer, StoreAsk
from taskd.core.types import StoreOperation as Op
from taskd.core.types import StoreStatus as Status
from taskd.wire import keys, local, store_frame
from taskd.wire.uplink import Uplink

READ_BYTES = 256 * 1024
RETRY_NS = 10 * limits.MS
"""How soon to try again what the line had no room for."""
LISTEN_RETRY_NS = 100 * limits.MS
TIMEOUT_MS_MAX = 2**43
"""Longer than any job; its nanoseconds fit 64 bits."""
PATIENCE_MS = 1_000
"""An answer that need not be waited for may still take this long, however short the worker's own limit is."""
_WAITING = frozenset({Op.GET, Op.WAIT})
_UNCHANGING = frozenset({Op.GET, Op.WAIT, Op.CHECK, Op.COUNT, Op.LIST})
_logger = log.get(__name__)


@dataclass(eq=False)
class _Client:
    """One connection of a worker."""

    sock: socket.socket
    incoming: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    request: _Request | None = None


@dataclass(eq=False)
class _Request:
    """One operation that is not answered yet."""

    number: int
    operation: Op
    amount: int
    items: tuple[bytes, ...]
    client: _Client
    timeout_ms: int
    deadline_ns: int
    gap_ns: int = limits.STORE_REPEAT_NS
    due_ns: int = 0  # when to ask (again)
    asked: bool = False


class StoreRelay:
    """Serves from `start` to `stop`; until then clients wait in the socket's backlog. Call `use` from any thread."""

    def __init__(self, job: str, node: str, host: str, port: int) -> None:
        self.name = local.store_address(job, node)
        self._line = Uplink(host, port, job, node)
        self._key: keys.Key | None = None
        self._stopping = False
        self._listener: socket.socket | None = None
        self._accepts = False
        self._clients: dict[int, _Client] = {}
        self._requests: dict[int, _Request] = {}
        self._changing: dict[int, None] = {}  # numbers of unanswered operations that change something, in order
        self._number = 0
        self._due_ns = 0  # no request needs to be looked at before
        self._listen_at_ns = 0
        self._epoll = select.epoll()
        self._poller = zmq.Poller()
        self._sources: list[object] = []
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        for fd in (self._epoll.fileno(), self._wake):
            _native.close_on_fork(fd)
        self._thread = threading.Thread(target=self._run, name="taskd-store", daemon=True)
        self._listen()

    def start(self) -> None:
        """Serve in a thread of its own."""
        self._thread.start()

    def use(self, key: keys.Key) -> None:
        """Speak to the manager with this key from now on."""
        if key is not self._key:
            self._key = key
            os.eventfd_write(self._wake, 1)

    def stop(self) -> None:
        """Close every connection and the name; returns when that is done."""
        if self._thread.ident is None:
            self._close()
        else:
            self._stopping = True
            os.eventfd_write(self._wake, 1)
            self._thread.join()
        for fd in (self._wake, self._epoll.fileno()):
            _native.keep_on_fork(fd)
        os.close(self._wake)
        self._epoll.close()

    # ---- the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except Exception:
            _logger.exception("the store of this node ends by a mistake of its own; its workers can make no new groups")
        finally:
            self._close()

    def _turn(self) -> None:
        self._poll()
        for fd, mask in self._epoll.poll(0):
            if fd == self._wake:
                os.eventfd_read(self._wake)
            elif self._listener is not None and fd == self._listener.fileno():
                self._accept()
            elif fd in self._clients:
                self._serve(self._clients[fd], mask)
        if self._key is not None and self._line.key is not self._key:
            self._line.use(self._key)
        for came in self._line.changes():
            if came:
                self._ask_all()
        for message in self._line.received():
            if isinstance(message, StoreAnswer):
                self._answered(message)
        now = time.monotonic_ns()
        if self._requests and now >= self._due_ns:
            self._look(now)
        if not self._accepts and now >= self._listen_at_ns:
            self._listen()

    def _poll(self) -> None:
        sources = [self._epoll.fileno(), *self._line.sources()]
        if sources != self._sources:
            self._poller, self._sources = zmq.Poller(), sources
            for source in sources:
                self._poller.register(source, zmq.POLLIN)
        due = [self._due_ns] if self._requests else []
        if not self._accepts:
            due.append(self._listen_at_ns)
        wait_ms = max(0, -(-(min(due) - time.monotonic_ns()) // limits.MS)) if due else None
        self._poller.poll(wait_ms)

    # ---- workers ----------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Listen on the name; another life of this node's agent may still have it, then later."""
        if self._listener is None:
            self._listener = self._bound()
        if self._listener is None:
            self._listen_at_ns = time.monotonic_ns() + LISTEN_RETRY_NS
            return
        self._epoll.register(self._listener, select.EPOLLIN)
        self._accepts = True

    def _bound(self) -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            sock.bind(self.name)
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
        if len(self._clients) >= limits.MAX_STORE_CLIENTS or not local.same_user(sock):
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
        sock.setblocking(False)
        _native.close_on_fork(sock.fileno())
        self._clients[sock.fileno()] = _Client(sock)
        self._epoll.register(sock, select.EPOLLIN)

    def _serve(self, client: _Client, mask: int) -> None:
        try:
            if mask & select.EPOLLOUT:
                self._write(client)
            if mask & ~select.EPOLLOUT:
                self._read(client)
        except store_frame.Malformed as error:
            pid, _ = local.peer(client.sock)
            log.once(
                _logger,
                logging.WARNING,
                f"store-malformed {error}",
                "process %d broke the rules of the job's store: %s",
                pid,
                error,
            )
            self._drop(client)
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        try:
            data = client.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._drop(client)
            return
        if client.request is not None or client.outgoing:
            raise store_frame.Malformed("it asked again before it was answered")
        client.incoming += data
        frame = store_frame.whole(client.incoming)
        if frame is not None:
            client.incoming = bytearray()
            self._begin(client, frame)

    def _begin(self, client: _Client, frame: store_frame.Frame) -> None:
        if frame.trouble:
            self._reply(client, Status.FAILED, 0, (frame.trouble.encode(),))
            return
        self._number += 1
        timeout_ms = max(0, min(frame.timeout_ms, TIMEOUT_MS_MAX))
        waits = frame.operation in _WAITING
        amount = int(timeout_ms == 0) if waits else frame.amount
        now = time.monotonic_ns()
        deadline_ns = now + limits.MS * (timeout_ms if waits and timeout_ms else max(timeout_ms, PATIENCE_MS))
        request = _Request(self._number, frame.operation, amount, frame.items, client, timeout_ms, deadline_ns)
        client.request = self._requests[request.number] = request
        if frame.operation not in _UNCHANGING:
            self._changing[request.number] = None
        self._ask(request, now)
        due = min(request.due_ns, request.deadline_ns)
        self._due_ns = due if len(self._requests) == 1 else min(self._due_ns, due)

    def _reply(self, client: _Client, status: Status, amount: int, items: tuple[bytes, ...]) -> None:
        client.request = None
        client.outgoing += store_frame.answer(status, amount, items)
        try:
            self._write(client)
        except OSError:
            self._drop(client)

    def _write(self, client: _Client) -> None:
        waited = len(client.outgoing)
        with contextlib.suppress(BlockingIOError):
            del client.outgoing[: client.sock.send(client.outgoing, socket.MSG_NOSIGNAL)]
        if client.outgoing or waited:
            self._epoll.modify(client.sock, select.EPOLLIN | (select.EPOLLOUT if client.outgoing else 0))

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.sock.fileno(), None) is None:
            return
        request, client.request = client.request, None
        if request is not None:
            self._forget(request)
            if request.asked and request.operation in _WAITING:
                self._number += 1
                self._line.send(StoreAsk(self._number, self._settled(), Op.FORGET, request.number, ()))
        self._hang_up(client.sock)

    def _hang_up(self, sock: socket.socket) -> None:
        # Closing would do, if a forked child that has not yet run its handlers did not hold the same socket.
        self._epoll.unregister(sock)
        _native.keep_on_fork(sock.fileno())
        sock.close()

    # ---- the manager ------------------------------------------------------------------------------------------

    def _ask(self, request: _Request, now: int) -> None:
        """Send it if the line stands; in any case know when to look at it again."""
        ask = StoreAsk(request.number, self._settled(), request.operation, request.amount, request.items)
        if self._line.send(ask):
            request.asked = True
            request.due_ns = now + request.gap_ns
            if request.operation in _WAITING:
                request.gap_ns = min(2 * request.gap_ns, limits.STORE_REPEAT_MAX_NS)
        elif self._line.ready:
            request.due_ns = now + RETRY_NS
        else:
            request.due_ns = request.deadline_ns  # sooner when the line comes

    def _settled(self) -> int:
        return next(iter(self._changing), self._number + 1)

    def _ask_all(self) -> None:
        now = time.monotonic_ns()
        for request in self._requests.values():
            request.gap_ns = limits.STORE_REPEAT_NS
            self._ask(request, now)
        self._due_ns = now

    def _answered(self, answer: StoreAnswer) -> None:
        request = self._requests.get(answer.number)
        if request is not None:
            self._forget(request)
            self._reply(request.client, answer.status, answer.amount, answer.items)

    def _look(self, now: int) -> None:
        """Ask again what is due, give up what is overdue."""
        for request in list(self._requests.values()):
            if now >= request.deadline_ns:
                self._give_up(request)
            elif now >= request.due_ns:
                self._ask(request, now)
        left = self._requests.values()
        self._due_ns = min((min(request.due_ns, request.deadline_ns) for request in left), default=0)

    def _give_up(self, request: _Request) -> None:
        self._forget(request)
        if request.asked and request.operation in _WAITING:
            self._number += 1
            self._line.send(StoreAsk(self._number, self._settled(), Op.FORGET, request.number, ()))
        if request.asked and self._line.ready and request.operation in _WAITING:
            shown = ", ".join(key[:100].decode("utf-8", "backslashreplace") for key in request.items[:3])
            more = f" and {len(request.items) - 3} more" if len(request.items) > 3 else ""
            text = f"wait timeout after {request.timeout_ms}ms, keys: {shown}{more}"
        else:
            why = self._line.reason or "the manager does not answer"
            text = f"{request.operation.name.lower()} was not carried out in time: {why}"
        self._reply(request.client, Status.TIMED_OUT, 0, (text.encode(),))

    def _forget(self, request: _Request) -> None:
        self._requests.pop(request.number, None)
        self._changing.pop(request.number, None)

    def _close(self) -> None:
        for client in list(self._clients.values()):
            self._drop(client)
        if self._listener is not None:
            if not self._accepts:
                self._epoll.register(self._listener)
            self._hang_up(self._listener)
            self._listener = None
        self._line.close()
