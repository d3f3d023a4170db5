"""The format of a rank's local record: a memory file with slots that are written in turn, and how to read each slot.

The training process writes the file (taskd.state.record). It is read by that process, by its successor and by the
node's agent. The agent keeps the file after its writer has ended, and copies it to another node. A slot is read only
if it is complete: its magic is zero while it is written, and a checksum finds what the magic cannot show. A file also
has a lineage number, which it shares with its copies and successors. Slots of two lineages are never mixed. The first
three slots hold the state from which a step begins. The last two hold, in turn, the ledger of the data between the
loops.

It does NOT know what the bytes mean, or when a slot is useful.
"""

from __future__ import annotations

import os
import secrets
import struct
import zlib
from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from taskd.core import limits

SLOT_BYTES = 256 << 20
"""This is address space, not memory: only written bytes use memory."""
SLOTS = limits.RECORD_SLOTS
LEDGER_SLOTS = 2
STEP_SLOTS = SLOTS - LEDGER_SLOTS
FILE_BYTES = SLOTS * SLOT_BYTES
HEAD = struct.Struct("<QqQI")
"""Magic (zero while the slot is being written), the step, the length, the checksum."""
MAGIC = 0x31304452_4B534154
BODY = 64
"""The offset in a slot at which its contents begin."""
_LINEAGE = struct.Struct("<Q")
_LINEAGE_AT = 40


class Occasion(IntEnum):
    """When the record was taken."""

    START = 0
    FORWARD = 1


def place(occasion: int, step: int) -> int:
    """The number of the slot.

    The start of a step does not replace the start of the step before. A rank may be one step ahead of the ranks that
    continue without it. Then all of them repeat the step before.
    """
    return 1 if occasion == Occasion.FORWARD else 2 * (step % 2)


def ledger_place(number: int) -> int:
    """The slot number for this version of the ledger. The previous version stays complete while it is written."""
    return STEP_SLOTS + number % LEDGER_SLOTS


class Head(NamedTuple):
    """The header of a slot, which describes its contents."""

    step: int
    length: int
    checksum: int


def make(lineage: int = 0, contents: Mapping[int, tuple[int, bytes]] | None = None) -> int:
    """Make a new file with these contents (step and bytes by slot). The caller owns the returned descriptor.

    Lineage 0 means a new lineage. Raises OSError when the host refuses the memory.
    """
    descriptor = os.memfd_create("taskd-record", os.MFD_CLOEXEC)
    try:
        os.ftruncate(descriptor, FILE_BYTES)
        os.pwrite(descriptor, _LINEAGE.pack(lineage or 1 + secrets.randbits(62)), _LINEAGE_AT)
        for slot, (step, data) in (contents or {}).items():
            at, done = slot * SLOT_BYTES, 0
            while done < len(data):
                done += os.pwrite(descriptor, memoryview(data)[done:], at + BODY + done)
            os.pwrite(descriptor, HEAD.pack(MAGIC, step, len(data), zlib.crc32(data)), at)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def lineage(descriptor: int) -> int:
    """The lineage number, which a file shares with its copies and successors; 0: the file is no record."""
    data = os.pread(descriptor, _LINEAGE.size, _LINEAGE_AT)
    return int(_LINEAGE.unpack(data)[0]) if len(data) == _LINEAGE.size else 0


def head(descriptor: int, slot: int) -> Head | None:
    """The header of a slot; None when the slot is empty or being written."""
    data = os.pread(descriptor, HEAD.size, slot * SLOT_BYTES)
    if len(data) < HEAD.size:
        return None
    magic, step, length, checksum = HEAD.unpack(data)
    return Head(step, length, checksum) if magic == MAGIC and length <= SLOT_BYTES - BODY else None


def read(descriptor: int, slot: int) -> tuple[int, bytes] | None:
    """The step and the bytes of one slot; None when it is empty, being written or torn by its writer's death."""
    found = head(descriptor, slot)
    if found is None:
        return None
    data = os.pread(descriptor, found.length, slot * SLOT_BYTES + BODY)
    return (found.step, data) if len(data) == found.length and zlib.crc32(data) == found.checksum else None
