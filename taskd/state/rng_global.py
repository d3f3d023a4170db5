"""The global generators of Python and NumPy: captured as bytes, and put back.

They take 20 and 50 µs to give their state, and a step asks three times. So their memory is compared with that at the
last look, because every draw changes it. It is proved once that this is the right memory, by comparing it with what the
generator gives. If it is not, the generator is asked each time. A spare normal number is stored elsewhere. Python's is
compared, too. Once NumPy has had one, NumPy's generator is asked each time.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from _random import Random
from collections.abc import Callable
from typing import Any

_PYTHON = struct.Struct("<dB625I")
"""The spare normal number and whether there is one; then the words, and how many of them are used up."""
_NUMPY = struct.Struct("<dBI")
"""The same without the words, which follow."""
_NAME = "MT19937"
_WORDS = 624

Spare = float | None


class Python:
    """The generator of the module `random`."""

    def __init__(self) -> None:
        owner: Any = getattr(random.getstate, "__self__", None)
        head = object.__basicsize__
        self._memory = _Memory(id(owner) + head if type(owner) is random.Random else 0, Random.__basicsize__ - head)
        self._owner = owner
        self._spare: Spare = None
        self._state = b""

    def capture(self) -> bytes:
        """Return its state."""
        if self._memory.unchanged() and self._owner.gauss_next == self._spare:
            return self._state
        version, words, self._spare = random.getstate()
        assert version == 3, "Python's generator changed its form"
        self._state = _PYTHON.pack(self._spare or 0.0, self._spare is not None, *words)
        self._memory.look(lambda: struct.pack(f"={_WORDS + 1}I", words[-1], *words[:-1]))
        return self._state

    def restore(self, state: bytes) -> None:
        """Put back what was captured."""
        spare, has_spare, *words = _PYTHON.unpack(state)
        random.setstate((3, tuple(words), spare if has_spare else None))


class Numpy:
    """The generator of `numpy.random`, if it is of NumPy's default kind."""

    def __init__(self) -> None:
        self._memory = _Memory(0, 0)
        self._owner: Any = None
        self._spares = False
        """There was a spare normal number once, which is not in this memory. From then on the generator is asked."""
        self._state = b""

    def capture(self) -> bytes:
        """Return its state. Empty: it is of another kind, or this process has never imported NumPy."""
        own = generator_of_numpy()
        if own is None:
            return b""
        owner = getattr(own, "_bit_generator", None)
        if owner is not None and owner is self._owner and self._memory.unchanged():
            return self._state
        found = own.get_state(legacy=False)
        if found["bit_generator"] != _NAME:
            return b""
        keys, used = found["state"]["key"], int(found["state"]["pos"])
        self._state = _NUMPY.pack(found["gauss"], found["has_gauss"], used) + keys.astype("<u4").tobytes()
        if owner is not self._owner:
            address = getattr(getattr(owner, "ctypes", None), "state_address", 0)
            self._owner, self._memory = owner, _Memory(address, 4 * _WORDS + 4)
        self._spares = self._spares or bool(found["has_gauss"])
        if self._spares:
            self._memory.forget()
        else:
            self._memory.look(lambda: keys.astype("=u4").tobytes() + struct.pack("=I", used))
        return self._state

    def restore(self, state: bytes) -> None:
        """Put back what was captured, unless that is empty."""
        if not state:
            return
        import numpy

        spare, has_spare, used = _NUMPY.unpack_from(state)
        keys = numpy.frombuffer(state[_NUMPY.size :], dtype="<u4")
        numpy.random.set_state((_NAME, keys, used, has_spare, spare))


def generator_of_numpy() -> Any:
    """Return the generator whose methods are the functions of `numpy.random`, or None."""
    functions = getattr(sys.modules.get("numpy"), "random", None)
    return getattr(getattr(functions, "get_state", None), "__self__", None)


class _Memory:
    """A piece of memory, and its contents at the last look."""

    def __init__(self, address: int, size: int) -> None:
        """`address` 0: the address is not known."""
        self._place: Any = (ctypes.c_char * size).from_address(address) if address else None
        self._proved = False
        self._seen = b""

    def unchanged(self) -> bool:
        return bool(self._seen) and bytes(self._place) == self._seen

    def look(self, expected: Callable[[], bytes]) -> None:
        """Note the contents. `expected` returns what they must begin with."""
        if self._place is None:
            return
        self._seen = bytes(self._place)
        if not self._proved:
            self._proved = self._seen.startswith(expected())
        if not self._proved:
            self._place, self._seen = None, b""

    def forget(self) -> None:
        self._seen = b""
