"""The format of a worker's requests to its node's agent for the job's store: plain frames on a stream.

The byte order is the machine's, because both ends are on one machine. A request has a u32 length, then u8 operation,
i64 milliseconds to wait, i64 amount, u32 count, and u32 length and bytes for each item. The answer has a u32 length, u8
status, i64 amount, u32 count and items. csrc/c10d/store.cpp is the other half. The input may be any bytes. The only
error is `Malformed`.
This module does NOT know sockets or what an operation does.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from taskd.core import limits
from taskd.core.types import StoreOperation, StoreStatus

FRAME_BYTES_MAX = limits.MAX_MESSAGE_BYTES
_LENGTH = struct.Struct("=I")
_HEAD = struct.Struct("=BqqI")
_TAIL = struct.Struct("=BqI")


class Malformed(Exception):
    """The bytes are no frame. Close the connection that brought them."""


@dataclass(frozen=True)
class Frame:
    """One operation that a worker asks for."""

    operation: StoreOperation
    timeout_ms: int
    amount: int
    items: tuple[bytes, ...]

    @property
    def trouble(self) -> str:
        """Why the manager cannot be asked for this operation; empty if it can."""
        largest = max(map(len, self.items), default=0)
        if largest > limits.MAX_STORE_VALUE:
            return f"a value has {largest} bytes, {limits.MAX_STORE_VALUE} at most: keep larger things elsewhere"
        size = sum(map(len, self.items)) + 5 * len(self.items)
        if size > limits.MAX_STORE_OPERATION:
            return f"an operation has {size} bytes, {limits.MAX_STORE_OPERATION} at most: ask for less at once"
        return ""


def whole(data: bytearray) -> Frame | None:
    """The operation in these bytes; None while bytes are missing. Raises Malformed."""
    if len(data) < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(data)
    if not _HEAD.size <= size <= FRAME_BYTES_MAX:
        raise Malformed(f"it announced {size} bytes, {_HEAD.size} to {FRAME_BYTES_MAX} are an operation")
    end = _LENGTH.size + size
    if len(data) < end:
        return None
    if len(data) > end:
        raise Malformed("more follows where an operation ends")
    number, timeout_ms, amount, count = _HEAD.unpack_from(data, _LENGTH.size)
    if number >= StoreOperation.FORGET:
        raise Malformed("it asked for an operation that does not exist")
    if count > limits.MAX_STORE_ITEMS:
        raise Malformed(f"it came with more than {limits.MAX_STORE_ITEMS} items")
    items = []
    at = _LENGTH.size + _HEAD.size
    for _ in range(count):
        first = at + _LENGTH.size
        at = first + _LENGTH.unpack_from(data, at)[0] if first <= end else end + 1
        if at > end:
            break
        items.append(bytes(data[first:at]))
    if at != end:
        raise Malformed("its items do not fit what it announced")
    return Frame(StoreOperation(number), timeout_ms, amount, tuple(items))


def answer(status: StoreStatus, amount: int, items: Sequence[bytes]) -> bytes:
    """The bytes of the answer to the worker."""
    body = [_TAIL.pack(status, amount, len(items))]
    for item in items:
        body += [_LENGTH.pack(len(item)), item]
    frame = b"".join(body)
    return _LENGTH.pack(len(frame)) + frame
