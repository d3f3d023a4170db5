"""Transfers of blocks over one rail, as both ends see them.

The receiver says `go`, the sender sends, and the receiver says `got` when it has everything. Each end measures from the
first of these words to the last one, so both measure the same thing. Whether the bytes are right is said afterwards, so
that the checksum is part of no time. Larger blocks are tried while they take little time. A time counts for the largest
block, and is told for sizes.UNIT bytes.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field

from taskd.check.sizes import BLOCK_NS, BLOCKS, TRIES_OF_BLOCKS, UNIT, UNIT_NS
from taskd.check.talk import Broken, Talk, checksum
from taskd.core.check.facts import Leg, Way

_noise = os.urandom(BLOCKS[0])


@dataclass(slots=True)
class Direction:
    """What one end knows of the transfers in one direction."""

    way: Way = Way.LATE
    times_ns: dict[int, int] = field(default_factory=dict)
    """The shortest time for each size of block."""

    def note(self, size: int, took_ns: int, right: bool) -> None:
        """Note a transfer that has arrived."""
        self.times_ns[size] = min(took_ns, self.times_ns.get(size, took_ns))
        self.way = Way.OK if right and self.way is not Way.CORRUPT else Way.CORRUPT

    def broke(self, way: Way) -> None:
        """Note that the connection broke during a transfer, or before any."""
        self.way = way

    @property
    def took_ns(self) -> int:
        """The time for UNIT bytes. 0: there is none."""
        size = max(self.times_ns, default=0)
        return max(self.times_ns[size] * UNIT // size, UNIT_NS) if size else 0


@dataclass(slots=True)
class Rail:
    """What one end knows of a rail in one test."""

    name: str
    sent: Direction = field(default_factory=Direction)
    received: Direction = field(default_factory=Direction)

    def leg(self) -> Leg:
        """Return this as a fact."""
        return Leg(self.name, self.sent.way, self.received.way, self.sent.took_ns, self.received.took_ns)

    def broke(self, way: Way) -> None:
        """Note that no connection came about."""
        self.sent.broke(way)
        self.received.broke(way)


def send(talk: Talk, rail: Rail, size: int) -> None:
    """Send a block of this size. Raises Broken."""
    try:
        _send(talk, rail.sent, size)
    except Broken as broken:
        rail.sent.broke(broken.way)
        raise


def receive(talk: Talk, rail: Rail, size: int) -> None:
    """Receive a block of this size. Raises Broken."""
    try:
        _receive(talk, rail.received, size)
    except Broken as broken:
        rail.received.broke(broken.way)
        raise


def _send(talk: Talk, sent: Direction, size: int) -> None:
    block = block_of(size)
    talk.say("block", checksum(block))
    talk.hear_only("go")
    begin = time.monotonic_ns()
    talk.send(memoryview(block))
    talk.hear_only("got")
    took_ns = time.monotonic_ns() - begin
    sent.note(size, took_ns, talk.hear_only("right") is True)


def _receive(talk: Talk, received: Direction, size: int) -> None:
    digest = talk.hear_only("block")
    block = bytearray(size)
    begin = time.monotonic_ns()
    talk.say("go")
    talk.receive(block)
    took_ns = time.monotonic_ns() - begin
    talk.say("got")
    right = checksum(block) == digest
    talk.say("right", right)
    received.note(size, took_ns, right)


def measure(talk: Talk, rail: Rail) -> None:
    """Send and receive blocks as the end that decides how many. Raises Broken."""
    for ask, transfer in (("take", send), ("give", receive)):
        for size, larger in zip(BLOCKS, (*BLOCKS[1:], 0), strict=True):
            begin, took_ns = time.monotonic_ns(), 0
            for _ in range(TRIES_OF_BLOCKS):
                again = time.monotonic_ns()
                talk.say(ask, size)
                transfer(talk, rail, size)
                took_ns = time.monotonic_ns() - again
                if time.monotonic_ns() - begin > BLOCK_NS:
                    break
            if took_ns * larger // size > BLOCK_NS:
                break


def block_of(size: int) -> bytes:
    """Return noise of this size."""
    return _noise * (size // len(_noise))
