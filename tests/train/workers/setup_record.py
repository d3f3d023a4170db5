"""Reads the record of a set-up, for tests that look into one. csrc/c10d/record.hpp has the layout.

The guards write the record while control.start_record() is on, and play it back in a sandbox. Nothing is executed and
no length is trusted. It needs no torch.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"TSKDREC1"
VERSION = 2
HEAD_BYTES = 16
FRAME_BYTES = 8
ALIGNMENT = 8


class State(IntEnum):
    OPEN = 1  # the set-up goes on, or its process died during it
    CLOSED = 2  # the first step began
    BROKEN = 3  # it could not be written completely
    GIVEN_UP = 4  # the script communicates on and on, and no session's loop begins


@dataclass(frozen=True)
class RecordedTensor:
    """A result. `data` is None if the tensor was too large. Its contents then come with the state."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes | None


@dataclass(frozen=True)
class Entry:
    """One operation. Peer, tag and source are -1, 0 and -1 unless it is a message."""

    kind: str
    group: str
    peer: int
    tag: int
    source: int
    tensors: tuple[RecordedTensor, ...]


@dataclass(frozen=True)
class Record:
    state: State
    entries: tuple[Entry, ...]
    torn: bool
    """True if an incomplete entry follows the last one: the process died while it wrote."""


def read(record: int | bytes) -> Record:
    """Read a record, given as a file descriptor or as bytes. Raises ValueError if it is not a record."""
    data = os.pread(record, os.fstat(record).st_size, 0) if isinstance(record, int) else record
    if len(data) < HEAD_BYTES or data[: len(MAGIC)] != MAGIC:
        raise ValueError("these bytes are not a record of a set-up")
    version, state = struct.unpack_from("<II", data, len(MAGIC))
    if version != VERSION or state not in list(State):
        raise ValueError(f"the record has version {version} and state {state}; version {VERSION} is read here")
    entries = []
    place = HEAD_BYTES
    while place + FRAME_BYTES <= len(data):
        length, checksum = struct.unpack_from("<II", data, place)
        body = data[place + FRAME_BYTES : place + FRAME_BYTES + length]
        if length == 0 or len(body) < length or zlib.crc32(body) != checksum:
            break
        entries.append(_Reader(body).entry())
        place += -(-(FRAME_BYTES + length) // ALIGNMENT) * ALIGNMENT
    return Record(State(state), tuple(entries), place < len(data))


class _Reader:
    """Reads numbers and texts from an entry's body, one after the other."""

    def __init__(self, body: bytes) -> None:
        self.body, self.place = body, 0

    def number(self, kind: str) -> int:
        (value,) = struct.unpack_from(f"<{kind}", self.body, self.place)
        self.place += struct.calcsize(f"<{kind}")
        return int(value)

    def text(self) -> bytes:
        length = self.number("I")
        self.place += length
        return self.body[self.place - length : self.place]

    def tensor(self) -> RecordedTensor:
        dtype = self.text().decode()
        shape = tuple(self.number("q") for _ in range(self.number("I")))
        has_bytes = self.number("I") != 0
        data = self.text()
        return RecordedTensor(dtype, shape, data if has_bytes else None)

    def entry(self) -> Entry:
        kind, group = self.text().decode(), self.text().decode()
        peer, tag, source = self.number("i"), self.number("i"), self.number("i")
        self.number("Q")  # the number that gives the order of the calls for playing back
        return Entry(kind, group, peer, tag, source, tuple(self.tensor() for _ in range(self.number("I"))))
