"""A relay of TCP bytes: it passes the bytes of a node's agents from one local port to the manager, and back.

Older scripts expect a proxy on each node's loopback. The relay passes bytes on unread. So the encryption between agent
and manager stays intact: the relay holds no key and sees no message. It has one thread and one selector. The number of
connections is limited, and so is the buffer of each one: if one side does not read, the relay stops reading the other.
It does NOT parse, retry or buffer across connections: an agent whose connection ends connects again by itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
from dataclasses import dataclass, field

from taskd import log
from taskd.errors import UsageError

CONNECTIONS_MAX = 256
BUFFER_BYTES = 64 * 1024
_logger = log.get(__name__)


@dataclass(eq=False)
class _End:
    """One socket of a pair; `outgoing` waits to be written to it."""

    sock: socket.socket
    connecting: bool = False
    ended: bool = False  # it will send nothing more
    shut: bool = False  # and our writing side is shut down: it gets nothing more
    outgoing: bytearray = field(default_factory=bytearray)
    other: _End | None = None


class Forwarder:
    """Listens on (host, port) and relays every connection to `upstream`. Raises UsageError when the port is taken."""

    def __init__(self, host: str, port: int, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self._selector = selectors.DefaultSelector()
        self._ends: set[_End] = set()
        try:
            self._listener = socket.create_server((host, port), backlog=128)
        except (OSError, OverflowError) as error:
            self._selector.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"the proxy cannot listen on {host}:{port} ({reason}); choose another ListenAddr or ListenPort"
            ) from None
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._wake_read, self._wake_write = socket.socketpair()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="taskd-proxy", daemon=True)

    def start(self) -> None:
        """Relay in a background thread until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """Close every connection and the port; returns when that is done."""
        if self._thread.ident is None:
            self._close()
            return
        self._wake_write.send(b"x")
        self._thread.join()

    def _run(self) -> None:
        try:
            while True:
                for key, mask in self._selector.select():
                    if key.fileobj is self._wake_read:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.data in self._ends:  # an earlier event of this round may have closed it
                        self._serve(key.data, mask)
        finally:
            self._close()

    def _close(self) -> None:
        for end in list(self._ends):
            self._drop(end)
        for sock in (self._listener, self._wake_read, self._wake_write):
            sock.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError as error:  # the client has gone again, or descriptors ran out
            log.once(_logger, logging.WARNING, "proxy-accept", "the proxy could not accept a connection: %s", error)
            return
        if len(self._ends) >= 2 * CONNECTIONS_MAX:
            log.once(
                _logger,
                logging.WARNING,
                "proxy-full",
                "the proxy serves %d connections and refuses more",
                CONNECTIONS_MAX,
            )
            client.close()
            return
        try:
            # The address is literal and resolves at once: a name was resolved when the proxy started.
            family = socket.AF_INET6 if ":" in self.upstream[0] else socket.AF_INET
            server = socket.socket(family)
            server.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                server.connect(self.upstream)
        except OSError:
            client.close()
            return
        for sock in (client, server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        near, far = _End(client), _End(server, connecting=True)
        near.other, far.other = far, near
        for end in (near, far):
            self._ends.add(end)
            self._selector.register(end.sock, selectors.EVENT_WRITE if end.connecting else selectors.EVENT_READ, end)

    def _serve(self, end: _End, mask: int) -> None:
        assert end.other is not None
        try:
            if end.connecting:
                error = end.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if error:
                    raise OSError(error, os.strerror(error))
                end.connecting = False
            if mask & selectors.EVENT_READ and len(end.other.outgoing) < BUFFER_BYTES:
                data = end.sock.recv(BUFFER_BYTES)
                end.ended = not data
                end.other.outgoing += data
            # First both writes, then both masks: whether to read one side depends on how much the other side took.
            for side in (end, end.other):
                self._write(side)
            for side in (end, end.other):
                self._watch(side)
            if end.shut and end.other.shut:
                self._drop(end)
        except BlockingIOError:
            return
        except OSError:
            self._drop(end)

    def _write(self, end: _End) -> None:
        assert end.other is not None
        if end.connecting:
            return
        if end.outgoing:
            with contextlib.suppress(BlockingIOError):
                del end.outgoing[: end.sock.send(end.outgoing)]
        if not end.outgoing and end.other.ended and not end.shut:
            end.sock.shutdown(socket.SHUT_WR)
            end.shut = True

    def _watch(self, end: _End) -> None:
        assert end.other is not None
        mask = 0
        if end.connecting or end.outgoing:
            mask |= selectors.EVENT_WRITE
        if not end.connecting and not end.ended and len(end.other.outgoing) < BUFFER_BYTES:
            mask |= selectors.EVENT_READ
        registered = end.sock in self._selector.get_map()
        if mask and registered:
            self._selector.modify(end.sock, mask, end)
        elif mask:
            self._selector.register(end.sock, mask, end)
        elif registered:
            self._selector.unregister(end.sock)

    def _drop(self, end: _End) -> None:
        for side in (end, end.other):
            if side is None or side not in self._ends:
                continue
            self._ends.discard(side)
            if side.sock in self._selector.get_map():
                self._selector.unregister(side.sock)
            side.sock.close()
