"""The random number generators of a process: captured as bytes, and put back.

Dropout and augmentation draw from generators that only this rank has: a step can be done again with the same result
only if they stand as the step found them. Python's, NumPy's (the global one), torch's on the CPU and on every
accelerator this process has used are covered; generators that user code made itself are registered with the session.
"""

from __future__ import annotations

import random
import struct
import sys
from array import array
from typing import Any

import torch

from taskd.errors import PeerError
from taskd.state.tree import bytes_of

_PYTHON_WORDS = 625
_NUMPY_WORDS = 624
_HEAD = struct.Struct("<dBBIBdIIH")
"""Python's spare normal and whether it is there; whether NumPy is there, its position, whether it has a spare normal
and which; the lengths of torch's states on the CPU and on all accelerators, and how many accelerators there are."""


def _accelerator() -> Any | None:
    """The module of the accelerator that this process has initialised, if any: asking must not initialise one."""
    for name in ("cuda", "npu"):
        module = getattr(torch, name, None)
        if module is not None and getattr(module, "is_initialized", lambda: False)():
            return module
    return None


def capture() -> bytes:
    """All generators as one string of bytes, about 10 KB on a CPU."""
    version, words, python_spare = random.getstate()
    assert version == 3 and len(words) == _PYTHON_WORDS, "Python's generator changed its form"
    numpy = sys.modules.get("numpy")  # a process that never imported it has no generator of it to keep
    keys, position, has_spare, spare = b"", 0, 0, 0.0
    if numpy is not None:
        kind, numbers, position, has_spare, spare = numpy.random.get_state(legacy=True)
        assert kind == "MT19937", "NumPy's global generator changed its kind"
        keys = numbers.astype("<u4").tobytes()
    cpu = bytes_of(torch.get_rng_state())
    module = _accelerator()
    devices = [bytes_of(state) for state in module.get_rng_state_all()] if module is not None else []
    head = _HEAD.pack(
        python_spare or 0.0, python_spare is not None, bool(keys), position, has_spare, spare,
        len(cpu), sum(map(len, devices)), len(devices),
    )  # fmt: skip
    return b"".join((head, array("I", words).tobytes(), keys, cpu, *devices))


def restore(state: bytes) -> None:
    """Put back what `capture` took. Raises PeerError when the bytes are not such a capture."""
    try:
        head = _HEAD.unpack_from(state)
    except struct.error as error:
        raise PeerError(f"a record of random number generators could not be read: {error}") from error
    python_spare, has_python, has_numpy, position, has_spare, spare, cpu_size, devices_size, device_count = head
    at = _HEAD.size + 4 * _PYTHON_WORDS
    cpu_at = at + (4 * _NUMPY_WORDS if has_numpy else 0)
    if len(state) != cpu_at + cpu_size + devices_size:
        raise PeerError(f"a record of random number generators could not be read: it has {len(state)} bytes")
    words = array("I")
    words.frombytes(state[_HEAD.size : at])
    random.setstate((3, tuple(words), python_spare if has_python else None))
    if has_numpy:
        import numpy

        keys = numpy.frombuffer(state[at:cpu_at], dtype="<u4")
        numpy.random.set_state(("MT19937", keys, position, has_spare, spare))
    torch.set_rng_state(torch.frombuffer(bytearray(state[cpu_at : cpu_at + cpu_size]), dtype=torch.uint8))
    _restore_devices(state[cpu_at + cpu_size :], device_count)


def _restore_devices(states: bytes, count: int) -> None:
    if not count:
        return
    module = _accelerator()
    if module is None or module.device_count() < count:
        raise PeerError(f"a record holds generators of {count} accelerators, which this process does not have")
    size = len(states) // count
    for index in range(count):
        one = bytearray(states[index * size : (index + 1) * size])
        module.set_rng_state(torch.frombuffer(one, dtype=torch.uint8), index)
