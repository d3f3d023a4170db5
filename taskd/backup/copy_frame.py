"""The bytes on the connection that carries copies of a rank's local record to another node's keeper.

The training thread itself writes each record to the connection before a gradient leaves the rank. No other thread has
to wake for it, and the kernel delivers the bytes even if the process is killed in the next moment. So there are no
answers. A connection begins with a challenge from the keeper and the worker's greeting, which proves that the worker
has the job's key. After that, frames go in one direction only. A large slot takes several frames.
Each frame proves that its sender has the job's key. A frame is not encrypted: a record holds generators and buffers,
and the process groups of the same training send these unencrypted, too. It does NOT know sockets.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass, replace

from taskd.backup import slots
from taskd.core import limits

CHALLENGE_BYTES = 16
MAC_BYTES = 16
GREETING_BYTES = MAC_BYTES
_HEAD = struct.Struct("<4sIIQQqBBBI")
"""Magic, rank, incarnation, lineage, number on this connection, step, slot, same, more, length."""
_MAGIC = b"TDC2"
PIECE = limits.SETUP_PIECE
"""The most bytes of a slot in one frame."""


class Malformed(Exception):
    """The peer is no worker of this job, so its connection must be closed."""


@dataclass(frozen=True)
class Frame:
    """A slot, or a piece of it.

    `same`: its bytes are the same as those of the previous slot, and `data` is empty. `more`: the slot continues in the
    next frame."""

    rank: int
    incarnation: int
    lineage: int
    number: int
    step: int
    slot: int
    same: bool
    data: bytes
    more: bool = False


def greeting(key: bytes, challenge: bytes) -> bytes:
    """The first bytes that a worker sends on a connection."""
    return _mac(key, challenge, b"greeting", b"")


def pack(key: bytes, challenge: bytes, frame: Frame) -> bytes:
    """The frame as bytes for the connection."""
    head = _HEAD.pack(
        _MAGIC,
        frame.rank,
        frame.incarnation,
        frame.lineage,
        frame.number,
        frame.step,
        frame.slot,
        frame.same,
        frame.more,
        len(frame.data),
    )
    return b"".join((head, _mac(key, challenge, head, frame.data), frame.data))


def take(key: bytes, challenge: bytes, number: int, incoming: bytearray) -> Frame | None:
    """Remove the frame of this number from the front of `incoming`; None while it is incomplete. Raises Malformed."""
    if len(incoming) < _HEAD.size + MAC_BYTES:
        return None
    head = bytes(incoming[: _HEAD.size])
    magic, rank, incarnation, lineage, found, step, slot, same, more, length = _HEAD.unpack(head)
    if magic != _MAGIC or length > PIECE or slot >= slots.SLOTS or rank >= limits.MAX_RANKS:
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
    return Frame(rank, incarnation, lineage, number, step, slot, bool(same), data, bool(more))


class Joined:
    """Joins the frames of one connection into slots."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []
        self._length = 0

    def add(self, frame: Frame) -> Frame | None:
        """The slot that this frame completes; None: more frames follow. Raises Malformed."""
        if self._frames and _slot_of(frame) != _slot_of(self._frames[0]):
            raise Malformed("a slot was broken off")
        self._frames.append(frame)
        self._length += len(frame.data)
        if self._length > limits.MAX_COPY:
            raise Malformed("a slot is longer than any")
        if frame.more:
            return None
        whole = replace(frame, data=b"".join(one.data for one in self._frames))
        self._frames, self._length = [], 0
        return whole


def _slot_of(frame: Frame) -> tuple[int, ...]:
    return frame.rank, frame.incarnation, frame.lineage, frame.step, frame.slot, frame.same


def _mac(key: bytes, challenge: bytes, head: bytes, data: bytes) -> bytes:
    digest = hashlib.blake2b(challenge, digest_size=MAC_BYTES, key=key)
    digest.update(head)
    digest.update(data)
    return digest.digest()
