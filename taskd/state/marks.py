"""Marks that stand for what a look can recognize and no repair can make again: tensors, arrays, kinds of numbers.

A callback may keep an average, and a queue of keys may be moved in a forward, where no source shows it. The mark of a
tensor on a CPU is a digest of some of its elements, taken anew when it was written to or replaced. Elsewhere a look
would have to wait for the device. There the mark says which tensor it is, and how often it was written to, and two
processes never have the same one. An array of numpy does not count its writes, so its digest is always taken anew.

A tensor that a graph of gradients has made is only a result of a step, and gets no mark. Whether a mark that has
changed matters is decided elsewhere.
"""

from __future__ import annotations

import itertools
import os
import weakref
import zlib
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from taskd.state.held import is_array
from taskd.state.plain import mark
from taskd.state.shards import version_of
from taskd.state.tree import bytes_of

_ELEMENTS = 1024
"""Elements of an array that are compared, spread over all of it."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_numbers = itertools.count()
_seen: dict[int, _Seen] = {}
ELSEWHERE = mark("tensor ")
"""With this begins the mark of a tensor that is not on a CPU."""


@dataclass(slots=True)
class _Seen:
    tensor: weakref.ref[torch.Tensor]
    number: int
    version: int = -1
    data: bytes = b""


class Which(NamedTuple):
    """Says which function or method is stored somewhere: a script may go from state to state by replacing it."""

    function: FunctionType | MethodType


def holds_numbers(value: Any) -> bool:
    """Whether it is a tensor or an array of numpy."""
    return issubclass(type(value), torch.Tensor) or is_array(value)


def mark_of(value: Any) -> bytes | None:
    """Return the mark of this value. None: it has none."""
    if issubclass(type(value), torch.Tensor):
        if value.grad_fn is not None:
            return None
        return _of_tensor(value)
    if type(value) in (torch.dtype, torch.device):
        return mark(str(value))
    if type(value) is Which:
        return mark(f"function {value.function.__module__}.{value.function.__qualname__}")
    if not is_array(value):
        return None
    few = value.reshape(-1)[:: 1 + value.size // _ELEMENTS]
    return mark(f"array {value.dtype} {value.shape} {zlib.crc32(few.tobytes())}")


def _of_tensor(tensor: torch.Tensor) -> bytes:
    seen, version = _seen_as(tensor), 0 if tensor.is_inference() else version_of(tensor)
    if type(tensor) not in _PLAIN or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return ELSEWHERE + f"{os.getpid()} {seen.number} {version}".encode()
    if version != seen.version or tensor.is_inference():
        few = tensor.detach().reshape(-1)[:: 1 + tensor.numel() // _ELEMENTS].contiguous()
        seen.version, seen.data = version, mark(f"numbers {tensor.dtype} {tensor.shape} {zlib.crc32(bytes_of(few))}")
    return seen.data


def _seen_as(tensor: torch.Tensor) -> _Seen:
    """Return what is known of this tensor, with a number that no other one of this process has had."""
    found = _seen.get(id(tensor))
    if found is None or found.tensor() is not tensor:
        key, number = id(tensor), next(_numbers)
        found = _seen[key] = _Seen(weakref.ref(tensor, lambda _: _forget(key, number)), number)
    return found


def _forget(key: int, number: int) -> None:
    if key in _seen and _seen[key].number == number:
        del _seen[key]
