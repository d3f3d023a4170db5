"""The bytes on the connection that carries copies of a rank's local record to the manager.

The training thread itself hands each record to the kernel before a gradient leaves the rank; nobody else has to be
woken for it, and the kernel delivers what it was given even if the process is killed in the next moment. So nothing is
answered: a connection begins with a challenge from the keeper, then frames go one way only. Each frame proves that its
sender has the job's key; it is not encrypted (a record holds generators and buffers, which the groups of the same
training send in the clear, too). It does NOT know sockets.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from taskd.core import limits
from taskd.wire import slots

CHALLENGE_BYTES = 16
MAC_BYTES = 16
_HEAD = struct.Struct("<4sIIQQqBBI")
"""Magic, rank, incarnation, lineage, number on this connection, step, slot, same, length."""
_MAGIC = b"TDC1"
FRAME_BYTES_MAX = _HEAD.size + MAC_BYTES + limits.MAX_COPY


class Malformed(Exception):
    """The peer is no worker of this job; its connection is to be closed."""


@dataclass(frozen=True)
class Frame:
    """One slot. `same`: its bytes are those of the frame before this one, and `data` is empty."""

    rank: int
    incarnation: int
    lineage: int
    number: int
    step: int
    slot: int
    same: bool
    data: bytes


def pack(key: bytes, challenge: bytes, frame: Frame) -> bytes:
    """The frame as it travels."""
    head = _HEAD.pack(
        _MAGIC,
        frame.rank,
        frame.incarnation,
        frame.lineage,
        frame.number,
        frame.step,
        frame.slot,
        frame.same,
        len(frame.data),
    )
    return b"".join((head, _mac(key, challenge, head, frame.data), frame.data))


def take(key: bytes, challenge: bytes, number: int, incoming: bytearray) -> Frame | None:
    """Take the frame of this number off the front; None while it is not whole. Raises Malformed."""
    if len(incoming) < _HEAD.size + MAC_BYTES:
        return None
    head = bytes(incoming[: _HEAD.size])
    magic, rank, incarnation, lineage, found, step, slot, same, length = _HEAD.unpack(head)
    if magic != _MAGIC or length > limits.MAX_COPY or slot >= slots.SLOTS or rank >= limits.MAX_RANKS:
        raise Malformed("it does not speak as a worker does")
    if incarnation > limits.MAX_INCARNATION or lineage >= 2**63 or not 0 <= step <= limits.MAX_STEP:
        raise Malformed("its numbers are none that a worker has")
    begin = _HEAD.size + MAC_BYTES
    if len(incoming) < begin + length:
        return None
    data = bytes(incoming[begin : begin + length])
    if found != number or incoming[_HEAD.size : begin] != _mac(key, challenge, head, data):
        raise Malformed("it has another key")
    del incoming[: begin + length]
    return Frame(rank, incarnation, lineage, number, step, slot, bool(same), data)


def _mac(key: bytes, challenge: bytes, head: bytes, data: bytes) -> bytes:
    digest = hashlib.blake2b(challenge, digest_size=MAC_BYTES, key=key)
    digest.update(head)
    digest.update(data)
    return digest.digest()
