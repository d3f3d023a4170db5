"""The random number generators of a process: captured as bytes, and put back.

Dropout and augmentation draw from generators that only this rank has. A step can be done again with the same result
only if they are in the state in which the step found them. Python's, NumPy's (the global one), and torch's on the CPU
and on every accelerator that this process has used are covered. So are generators passed to `follow`: loaders, samplers
and datasets have their own, which `find` finds, and a loop of the script uses others (found.py). The user registers all
other generators with the session.
"""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from taskd.errors import PeerError
from taskd.state import rng_global, tree
from taskd.state.tree import bytes_of

_HEAD = struct.Struct("<HHIIHI")
"""The lengths of Python's state, of NumPy's, and of torch's on the CPU and on all accelerators; the number of
accelerators; the length of the states of the followed generators."""
_DEEP = 6
_MOST = 64
_MOST_SEEN = 4096
"""Limits of the search for generators: how deep in an object, how many items of one container, how many objects in
all."""
OF_THE_LOOP = -1
"""The number under which the generators of the script's loop are followed."""
OF_NUMPY = -2
"""The number of NumPy's global generator, if it is not of NumPy's default kind."""
_NAMED = -3
"""The number of the generators that are followed by name."""
_followed: dict[int, list[Any]] = {}
_by_name: dict[str, Any] = {}
_python = rng_global.Python()
_numpy = rng_global.Numpy()


def _accelerator() -> Any | None:
    """Return the module of the accelerator that this process has initialised, if any, without initialising one."""
    for name in ("cuda", "npu"):
        module = getattr(torch, name, None)
        if module is not None and getattr(module, "is_initialized", lambda: False)():
            return module
    return None


def capture() -> bytes:
    """Return the state of all generators as one string of bytes, about 10 KB on a CPU."""
    python, numpy = _python.capture(), _capture_numpy()
    cpu = bytes_of(torch.get_rng_state())
    module = _accelerator()
    devices = [bytes_of(state) for state in module.get_rng_state_all()] if module is not None else []
    others = b"".join(tree.pack(_states(), "generators of loaders")) if _by_name or any(_followed.values()) else b""
    head = _HEAD.pack(len(python), len(numpy), len(cpu), sum(map(len, devices)), len(devices), len(others))
    return b"".join((head, python, numpy, cpu, *devices, others))


def _capture_numpy() -> bytes:
    state = _numpy.capture()
    if not state and (own := rng_global.generator_of_numpy()) is not None:
        follow(OF_NUMPY, [own])
    return state


def restore(state: bytes) -> None:
    """Put back what `capture` took. Raises PeerError when the bytes are not such a capture."""
    try:
        head = _HEAD.unpack_from(state)
    except struct.error as error:
        raise PeerError(f"a record of random number generators could not be read: {error}") from error
    python_size, numpy_size, cpu_size, devices_size, device_count, rest = head
    numpy_at = _HEAD.size + python_size
    cpu_at = numpy_at + numpy_size
    devices_at = cpu_at + cpu_size
    if len(state) != devices_at + devices_size + rest:
        raise PeerError(f"a record of random number generators could not be read: it has {len(state)} bytes")
    try:
        _python.restore(state[_HEAD.size : numpy_at])
        _numpy.restore(state[numpy_at:cpu_at])
    except (struct.error, ValueError) as error:
        raise PeerError(f"a record of random number generators could not be read: {error}") from error
    torch.set_rng_state(torch.frombuffer(bytearray(state[cpu_at:devices_at]), dtype=torch.uint8))
    _restore_devices(state[devices_at : devices_at + devices_size], device_count)
    if rest:
        _capture_numpy()  # a newcomer has not captured it yet
        _put_states(tree.unpack(state[devices_at + devices_size :]))


# ---- generators of loaders and scripts


def follow(number: int, generators: list[Any]) -> None:
    """Capture and put back these, too, from now on. A newcomer uses the same numbers as the process it replaces."""
    _followed[number] = generators


def follow_by_name(generators: dict[str, Any]) -> None:
    """Capture and put back these, too, and no others that were followed by name. Steps may make and replace them."""
    _by_name.clear()
    _by_name.update(generators)


def kind_of(item: Any) -> str:
    """Return what a generator's state fits."""
    inner = getattr(item, "bit_generator", None) or getattr(item, "_bit_generator", None)
    place = str(item.device) if isinstance(item, torch.Generator) else type(inner).__name__
    return f"{type(item).__name__} {place}"


def forget(number: int, generators: list[Any]) -> None:
    """Stop following these, unless others have that number now."""
    if _followed.get(number) is generators:
        del _followed[number]


def follow_only(generators: list[Any]) -> None:
    """Follow only these: in a loader's process, the generators that its parent follows do not move."""
    _followed.clear()
    _by_name.clear()
    follow(0, generators)


def find(owner: Any) -> list[Any]:
    """Return the pseudo-random generators in an object and in its parts, each once, in a fixed order."""
    found: dict[int, Any] = {}
    seen: set[int] = set()
    level = [owner]
    for _ in range(_DEEP):
        inner: list[Any] = []
        for item in level:
            if id(item) in seen or len(seen) > _MOST_SEEN:
                continue
            seen.add(id(item))
            if is_generator(item):
                found[id(item)] = item
            else:
                inner += _parts(item)
        level = inner
    return [*found.values()]


def _parts(item: Any) -> Iterator[Any]:
    if isinstance(item, torch.Tensor | torch.nn.Module | type | ModuleType):
        return
    many = item.values() if isinstance(item, dict) else item if isinstance(item, list | tuple) else ()
    if len(many) <= _MOST:
        yield from many
    own = getattr(item, "__dict__", None)
    if isinstance(own, dict):
        yield from own.values()


def is_generator(item: Any) -> bool:
    """Whether it draws pseudo-random numbers of its own."""
    if isinstance(item, torch.Generator):
        return True
    if isinstance(item, random.Random):
        return not isinstance(item, random.SystemRandom)
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(item, numpy.random.Generator | numpy.random.RandomState)


def _states() -> dict[int, Any]:
    named = {name: [kind_of(item), _state_of(item)] for name, item in _by_name.items()}
    listed = {number: [_state_of(item) for item in generators] for number, generators in _followed.items()}
    return {**listed, _NAMED: named}


def _state_of(item: Any) -> Any:
    if isinstance(item, torch.Generator):
        return bytes_of(item.get_state())
    if isinstance(item, random.Random):
        return item.getstate()
    return item.get_state(legacy=False) if hasattr(item, "get_state") else item.bit_generator.state


def _put_states(states: dict[int, Any]) -> None:
    for number, generators in _followed.items():
        for item, state in zip(generators, states.get(number, ()), strict=False):
            _put_state(item, state)
    for name, (kind, state) in states.get(_NAMED, {}).items():
        item = _by_name.get(name)
        if item is not None and kind_of(item) == kind:  # others are missed where they are compared (observed.py)
            _put_state(item, state)


def _put_state(item: Any, state: Any) -> None:
    if isinstance(item, torch.Generator):
        item.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    elif isinstance(item, random.Random):
        item.setstate(state)
    elif hasattr(item, "set_state"):
        item.set_state(state)
    else:
        item.bit_generator.state = state


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
