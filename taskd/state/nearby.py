"""Reads another rank's tensors directly from its memory, if it runs on the same host and the system allows it.

State that goes to a newcomer through sockets is copied four times by two processes. Read in place, it is copied once,
at the speed of memory. The rank that gives says where its tensors are, and the rank that takes reads them. The giver
changes nothing until it is told that all was read. The taker first tries to read a secret of the giver's process: on
another host or in another container, the giver's process id belongs to no process, or to another one. If the memory
cannot be read (another host, no permission, tensors on an accelerator), the state is sent as messages.

Failure modes: the giver dies meanwhile (the read ends with an error, PeerError). Checksums are the caller's.
"""

from __future__ import annotations

import ctypes
import os
import secrets
from collections.abc import Sequence

import msgpack
import torch

from taskd.errors import PeerError

_SECRET_BYTES = 32
_libc = ctypes.CDLL(None, use_errno=True)
_libc.process_vm_readv.restype = ctypes.c_ssize_t


class _Vector(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


class Shown:
    """What a giver says about its tensors. The tensors and this object must not change until all was read."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._secret = ctypes.create_string_buffer(secrets.token_bytes(_SECRET_BYTES), _SECRET_BYTES)
        self.text = b""
        """The bytes for the taker. Empty: these tensors cannot be read in place."""
        if all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors):
            places = [tensor.data_ptr() for tensor in tensors]
            row = [os.getpid(), ctypes.addressof(self._secret), self._secret.raw, places]
            self.text = msgpack.packb(row, use_bin_type=True)


class Memory:
    """A giver's memory, as its taker reads it."""

    def __init__(self, pid: int, places: Sequence[int]) -> None:
        self._pid = pid
        self.places = places

    @classmethod
    def open(cls, text: bytes) -> Memory | None:
        """Return the memory that `Shown` describes. None: it cannot be read from here."""
        if not text:
            return None
        pid, place, secret, places = msgpack.unpackb(text, raw=False)
        memory, found = cls(pid, places), ctypes.create_string_buffer(_SECRET_BYTES)
        try:
            memory.read(place, ctypes.addressof(found), _SECRET_BYTES)
        except PeerError:
            return None
        return memory if found.raw == secret else None

    def read(self, place: int, target: int, size: int) -> None:
        """Copy `size` bytes from there to the address `target` here. Raises PeerError."""
        done = 0
        while done < size:
            here, there = _Vector(target + done, size - done), _Vector(place + done, size - done)
            count = _libc.process_vm_readv(
                ctypes.c_int(self._pid), ctypes.byref(here), 1, ctypes.byref(there), 1, ctypes.c_ulong(0)
            )
            if count <= 0:
                why = os.strerror(ctypes.get_errno()) if count < 0 else "nothing is there"
                raise PeerError(f"the memory of process {self._pid} could not be read: {why}")
            done += count
