"""One connection between two probes: short messages, and blocks of bytes. Everything has a deadline and a bound.

Failure modes: the partner ends, hangs, or says what it must not say; the network drops everything or breaks the
connection. Each becomes a Broken with the way in which the transfer ended. What a partner says is never trusted: a
message has at most MESSAGE_MOST bytes, and a block has the size that this side wanted.
"""

from __future__ import annotations

import socket
import struct
import time
import zlib
from typing import Any

import msgpack

from taskd.core.check.facts import Way

MESSAGE_MOST = 4_096
_LENGTH = struct.Struct("!I")


class Broken(Exception):
    """The connection is of no use any more. `way`: how the transfer ended."""

    def __init__(self, way: Way) -> None:
        super().__init__(way.value)
        self.way = way


class Talk:
    """A connection with another probe."""

    def __init__(self, connection: socket.socket, until: float) -> None:
        """`until`: a moment of time.monotonic() after which nothing is waited for."""
        self.connection, self.until = connection, until
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def say(self, *words: Any) -> None:
        """Send a message. Raises Broken."""
        data = msgpack.packb(words)
        self.send(memoryview(_LENGTH.pack(len(data)) + data))

    def hear(self) -> list[Any]:
        """Wait for the next message. Raises Broken."""
        (length,) = _LENGTH.unpack(self.receive(bytearray(_LENGTH.size)))
        if length > MESSAGE_MOST:
            raise Broken(Way.FAILED)
        try:
            words = msgpack.unpackb(self.receive(bytearray(length)))
        except (ValueError, msgpack.UnpackException):
            raise Broken(Way.FAILED) from None
        if not isinstance(words, list) or not words:
            raise Broken(Way.FAILED)
        return words

    def hear_only(self, word: str) -> Any:
        """Wait for the next message, and return what follows this word in it. None: nothing. Raises Broken if it is
        another message."""
        said, *more = self.hear()
        if said != word or len(more) > 1:
            raise Broken(Way.FAILED)
        return more[0] if more else None

    def send(self, data: memoryview) -> None:
        """Send bytes. Raises Broken."""
        with _Breaking():
            while data:
                self.connection.settimeout(self._left())
                data = data[self.connection.send(data) :]

    def receive(self, into: bytearray) -> bytearray:
        """Fill the buffer. Raises Broken."""
        left = memoryview(into)
        with _Breaking():
            while left:
                self.connection.settimeout(self._left())
                got = self.connection.recv_into(left)
                if not got:
                    raise Broken(Way.FAILED)
                left = left[got:]
        return into

    def close(self) -> None:
        """End the connection."""
        self.connection.close()

    def _left(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Breaking:
    """Turns the errors of sockets into Broken."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        if isinstance(error, TimeoutError):
            raise Broken(Way.LATE) from None
        if isinstance(error, OSError):
            raise Broken(Way.FAILED) from None


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Return a number that differs if the bytes differ."""
    return zlib.crc32(data)
