"""Keeps the state that only this rank has in a memory file, so that it survives the death of the process.

Random generators, BatchNorm's buffers and the like exist once in the job, and a killed process cannot send them. So a
worker writes them into a memory file whose descriptor the node's agent holds, too. It writes at the start of each step,
and again when the forward has ended, before any gradient leaves the rank. There are three slots, one for the forward
and two for starts in turn, so that the needed state is whole whenever the process dies. Two more slots take turns for
the ledger (ledger.py), of which the newest whole version counts. The file is anonymous (memfd): it needs no name, no
mount and no cleaning up. Its format is in taskd.backup.slots. `on_write` tells of each write, so that it can be copied
to another node. This module does NOT know what the bytes mean, and decides which slot a newcomer needs only by the rule
in `find`.

Invariant: a gradient of step s leaves the rank only after slot FORWARD of step s is whole. So if a survivor has applied
update s, the dead rank's FORWARD of s or START of s + 1 can be read. If no survivor has, its START of s or FORWARD of
s - 1 can be read, although the rank may have been in step s + 1 itself. It cannot have been further, because that takes
the gradients of s + 1 from all ranks.
"""

from __future__ import annotations

import mmap
import os
import weakref
import zlib
from collections.abc import Callable

from taskd.backup import slots
from taskd.backup.slots import BODY, HEAD, MAGIC, SLOT_BYTES, Occasion
from taskd.errors import PeerError, UsageError

__all__ = ["Occasion", "Record"]

_open: weakref.WeakSet[Record] = weakref.WeakSet()


def _after_fork() -> None:
    """Release the memory in a forked child, which must not keep or touch it. The kernel could do so (MADV_DONTFORK),
    but the child's objects would not know. They would release the same addresses later, where the child has put
    something else by then."""
    for record in _open:
        record._map.close()


os.register_at_fork(after_in_child=_after_fork)


class Record:
    """The slots in one memory file, whose descriptor the record owns."""

    def __init__(self, descriptor: int) -> None:
        size = os.fstat(descriptor).st_size
        if size != slots.FILE_BYTES:
            os.close(descriptor)
            raise PeerError(f"a local record of {size} bytes is none: it has {slots.FILE_BYTES}")
        self.descriptor = descriptor
        self.on_write: Callable[[int, int, bytes], None] | None = None
        """Called after each write with the slot, its step and its bytes, which are then copied to another node."""
        self._map = mmap.mmap(descriptor, size)
        _open.add(self)
        self._reserved = [0] * slots.SLOTS

    @classmethod
    def create(cls) -> Record:
        """A new, empty record. Raises OSError when the host refuses the memory file."""
        return cls(slots.make())

    def write(self, occasion: Occasion, step: int, pieces: list[bytes]) -> None:
        """Replace one slot. Raises UsageError when the state is too large, OSError when the host has no memory left."""
        self._put(slots.place(occasion, step), step, pieces)

    def write_ledger(self, number: int, pieces: list[bytes]) -> None:
        """Write the next version of the ledger; raises as `write` does."""
        self._put(slots.ledger_place(number), number, pieces)

    def _put(self, slot: int, step: int, pieces: list[bytes]) -> None:
        length = sum(map(len, pieces))
        if length > SLOT_BYTES - BODY:
            raise UsageError(
                f"this rank's local state has {length} bytes, more than the {SLOT_BYTES - BODY} that are kept for it: "
                "register what every replica has as `model`, `optimizer` or a replicated object instead"
            )
        at = slot * SLOT_BYTES
        if length > self._reserved[slot]:  # if the host lacks memory: an error here, a SIGBUS later
            os.posix_fallocate(self.descriptor, at, BODY + length)
            self._reserved[slot] = length
        self._map[at : at + 8] = bytes(8)
        end, checksum = at + BODY, 0
        for piece in pieces:
            self._map[end : end + len(piece)] = piece
            end += len(piece)
            checksum = zlib.crc32(piece, checksum)
        HEAD.pack_into(self._map, at, 0, step, length, checksum)
        self._map[at : at + 8] = MAGIC.to_bytes(8, "little")
        if self.on_write is not None:
            self.on_write(slot, step, b"".join(pieces))

    def find(self, updates: int) -> tuple[Occasion, bytes] | None:
        """Return what a rank resumes from after `updates` updates: the start of that step, or the forward before it."""
        for occasion, step in ((Occasion.START, updates), (Occasion.FORWARD, updates - 1)):
            found = slots.read(self.descriptor, slots.place(occasion, step))
            if found is not None and found[0] == step:
                return occasion, found[1]
        return None

    def contents(self) -> list[bytes]:
        """Return the contents of the whole step slots, in no particular order."""
        found = (slots.read(self.descriptor, slot) for slot in range(slots.STEP_SLOTS))
        return [one[1] for one in found if one is not None]

    def ledger(self) -> tuple[int, bytes] | None:
        """Return the number and the bytes of the ledger's newest whole version. None: there is none."""
        places = map(slots.ledger_place, range(slots.LEDGER_SLOTS))
        found = [one for one in (slots.read(self.descriptor, place) for place in places) if one is not None]
        return max(found, default=None)

    def held(self) -> str:
        """Return a text about what the slots hold, for an error message."""
        names = (Occasion.START, Occasion.FORWARD, Occasion.START)
        found = [(name, slots.read(self.descriptor, slot)) for slot, name in enumerate(names)]
        return ", ".join(f"{name.name.lower()} of step {one[0]}" for name, one in found if one is not None) or "nothing"

    def close(self) -> None:
        """Release the memory. Other processes that hold a descriptor of the file keep it."""
        self._map.close()
        os.close(self.descriptor)
