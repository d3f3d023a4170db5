"""Keeps what only this rank has of a model in a memory file, so that it survives the death of the process.

With shards on a mesh of one dimension, no other rank has a rank's parameters and the state of its optimizer. So a rank
writes them when a step begins, in two slots in turn. Before its update it writes what the optimizer is given: the
gradients, and the settings of its groups. From these a newcomer makes the same update (kept_shards.py). The file is
anonymous (memfd), like the record (record.py); the node's agent holds its descriptor, too.

A slot counts only while its mark is whole: the mark is zero while the slot is written. There is no checksum, since the
file is memory of this host, as the tensors are. This module does NOT know which updates the ranks agree on.

Invariant: while a slot is written, the other one of its kind, or the gradients that lead to it, are whole.
"""

from __future__ import annotations

import ctypes
import os
import struct
from enum import IntEnum
from typing import Any

import torch

from taskd.core.types import NOTHING_KEPT, Kept
from taskd.errors import PeerError
from taskd.state import tree

SLOT_BYTES = 1 << 42
"""This is address space, not memory: only written bytes use memory."""
STATES = (0, 1)
GRADIENTS = 2
_HEAD = struct.Struct("<QqQQ")
"""The mark (zero while the slot is written), the number of updates, the writer's word (see `write_state`), the length
of the text. The text follows, then the tensors, each where a page begins."""
_MARK = 0x31304453_4B534154
_BODY = 64
_PAGE = 4096


class Leads(IntEnum):
    """Whether what was written before an update leads to the next state."""

    PERHAPS = 0
    SURELY = 1
    WITHOUT_UPDATE = 2


class ShardFile:
    """The slots in one memory file, whose descriptor it owns."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    @classmethod
    def create(cls) -> ShardFile:
        """A new, empty file. Raises OSError when the host refuses it."""
        return cls(os.memfd_create("taskd-shards", os.MFD_CLOEXEC))

    def write_state(self, updates: int, state: Any, word: int = 0) -> None:
        """Write the state after so many updates, and a number that can be read without the state. Raises OSError if the
        host has no room, UsageError if something in the state cannot be kept."""
        self._write(STATES[updates % len(STATES)], updates, word, state)

    def write_gradients(self, updates: int, given: Any, leads: Leads) -> None:
        """Write what the optimizer is given after so many updates; raises as `write_state` does. `leads`: whether it is
        known that this leads to the next state. Otherwise it does not count."""
        self._write(GRADIENTS, updates, leads, given)

    def go_back(self, updates: int) -> None:
        """Forget what leads beyond this number of updates: from here on, all is done again."""
        for slot in (*STATES, GRADIENTS):
            if self._number(slot) >= updates + (slot != GRADIENTS):
                os.pwrite(self.descriptor, bytes(_HEAD.size), slot * SLOT_BYTES)

    def kept(self) -> Kept:
        """To which numbers of updates the rank can be brought from here."""
        states = {self._number(slot) for slot in STATES} - {-1}
        if not states:
            return NOTHING_KEPT
        first = last = max(states)
        first -= first - 1 in states
        number, leads, _ = self._head(GRADIENTS)
        return Kept(first, last + (number == last and leads != Leads.PERHAPS))

    def has_state(self, updates: int) -> bool:
        """Whether the state after so many updates is here."""
        return updates >= 0 and self._number(STATES[updates % len(STATES)]) == updates

    def word(self, updates: int) -> int:
        """Return the number that was written with the state after so many updates. -1: the state is not here."""
        return self._head(STATES[updates % len(STATES)])[1] if self.has_state(updates) else -1

    @property
    def proved(self) -> bool:
        """Whether it was known, when gradients were written last, that they lead to the next state."""
        return self._head(GRADIENTS)[1] == Leads.SURELY

    @property
    def size(self) -> int:
        """How many bytes of memory it takes."""
        return os.fstat(self.descriptor).st_blocks * 512

    def state(self, updates: int) -> Any:
        """Return the state after so many updates. None: it is not here."""
        return self._read(STATES[updates % len(STATES)], updates)

    def gradients(self, updates: int) -> Any:
        """Return what the optimizer was given after so many updates. None: it is not here."""
        return self._read(GRADIENTS, updates)

    def forget(self) -> None:
        """Free all memory; nothing is kept any more."""
        os.ftruncate(self.descriptor, 0)

    def _number(self, slot: int) -> int:
        return self._head(slot)[0]

    def _head(self, slot: int) -> tuple[int, int, int]:
        """Return the number of updates of a slot, the writer's word and the length of the text."""
        data = os.pread(self.descriptor, _HEAD.size, slot * SLOT_BYTES)
        mark, *found = _HEAD.unpack(data) if len(data) == _HEAD.size else (0, -1, 0, 0)
        return tuple(found) if mark == _MARK else (-1, 0, 0)

    def _write(self, slot: int, updates: int, word: int, value: Any) -> None:
        text, tensors = tree.flatten(value, "what only this rank has")
        start = slot * SLOT_BYTES
        os.pwrite(self.descriptor, bytes(_HEAD.size), start)
        at = _write_all(self.descriptor, text, start + _BODY)
        for tensor in tensors:
            host = tensor.detach().cpu().contiguous()
            at = _next_page(at)
            if host.nbytes:
                at = _write_all(self.descriptor, _memory(host), at)
        os.pwrite(self.descriptor, _HEAD.pack(_MARK, updates, word, len(text)), start)

    def _read(self, slot: int, updates: int) -> Any:
        if updates < 0 or self._number(slot) != updates:
            return None
        start = slot * SLOT_BYTES
        length = self._head(slot)[2]
        text = os.pread(self.descriptor, length, start + _BODY)
        at, tensors = start + _BODY + length, []
        for dtype, shape, _ in tree.layout(text):
            tensor, at = torch.empty(shape, dtype=dtype, device="cpu"), _next_page(at)
            if tensor.nbytes:
                at = _read_all(self.descriptor, _memory(tensor), at)
            tensors.append(tensor)
        return tree.unflatten(text, tensors)


def _next_page(at: int) -> int:
    return -(-at // _PAGE) * _PAGE


def _memory(tensor: torch.Tensor) -> memoryview:
    return memoryview((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def _write_all(descriptor: int, data: bytes | memoryview, at: int) -> int:
    """Write all of it and return where it ends. The kernel writes 2 GiB at most at once."""
    left = memoryview(data)
    while left:
        done = os.pwrite(descriptor, left, at)
        left, at = left[done:], at + done
    return at


def _read_all(descriptor: int, into: memoryview, at: int) -> int:
    """Read all of it and return where it ends. Raises PeerError if the file ends before."""
    while into:
        done = os.preadv(descriptor, [into], at)
        if not done:
            raise PeerError("the memory file of this rank's shards is shorter than what it names")
        into, at = into[done:], at + done
    return at
