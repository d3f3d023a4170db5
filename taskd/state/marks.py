"""Marks that stand for what a look can recognize and no repair can make again: tensors, arrays, kinds of numbers.

A callback may keep an average, and a queue of keys may be moved in a forward, where no source shows it. The mark of a
tensor is a digest of some of its elements, taken anew when it was written to or replaced. An array of numpy does not
count its writes, so its digest is always taken anew. It does NOT see tensors on devices: a look would have to wait for
them. Nor does it see subclasses, which may run code of their own.

A write by way of `.data` is seen only when all marks are taken anew, which is done in a repair.

A function or an object of a class has a mark, too, that says which one it is: steps may take another (Which).

A tensor that a graph of gradients has made is only a result of a step, and gets no mark. Whether a mark that has
changed matters is decided elsewhere.
"""

from __future__ import annotations

import functools
import sys
import weakref
import zlib
from collections.abc import Set
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from taskd.state.crowds import Crowd, mark_of_crowd
from taskd.state.plain import mark
from taskd.state.sources import is_the_scripts
from taskd.state.tree import bytes_of

_ELEMENTS = 1024
"""Elements that are compared, spread over all."""
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_CODE = mark("code ")
_OBJECT, _METHOD, _FUNCTION = mark("code of an object"), mark("code of a class"), mark("code function ")
_NUMBERS = mark("numbers ")
"""With this begin the marks of tensors and arrays."""


@dataclass(slots=True)
class _Seen:
    tensor: weakref.ref[torch.Tensor]
    version: int
    data: bytes


_seen: dict[int, _Seen] = {}


@dataclass(frozen=True, slots=True)
class Which:
    """Says which code is stored somewhere: a script may go from state to state by replacing a function or an object."""

    text: str


@functools.lru_cache(maxsize=4096)
def code(text: str) -> Which:
    """Return what says this: always the same object, so that looks find nothing else there."""
    return Which(text)


def which_of(value: Any) -> Which | None:
    """Return which code this is: a function, a module of torch, or an object of one of the script's own classes. None:
    it is something else."""
    kind = type(value)
    while issubclass(kind, functools.partial) or kind is MethodType:
        value = value.func if kind is not MethodType else value.__func__
        kind = type(value)
    if kind is FunctionType:
        return code(f"function {value.__module__}.{value.__qualname__}, line {value.__code__.co_firstlineno}")
    if kind is BuiltinFunctionType:
        return code(f"function {value.__module__}.{value.__qualname__}")
    if issubclass(kind, torch.nn.Module) or (is_the_scripts(kind) and not issubclass(kind, (torch.Tensor, type))):
        what = "" if issubclass(kind, torch.nn.Module) else "of an object "
        return code(f"{what}{kind.__module__}.{kind.__qualname__}")
    return None


def may_be_missing(marks: Set[bytes]) -> bool:
    """Whether what has one of these marks may be there or not: an object whose values are looked at anyway, or a
    function of a class that nobody has reached so far."""
    return any(one.startswith((_OBJECT, _METHOD)) for one in marks)


def is_of_a_function(data: bytes) -> bool:
    """Whether this is the mark of a function. To make it once more does nothing else."""
    return data.startswith(_FUNCTION)


def is_of_code(data: bytes) -> bool:
    """Whether this is the mark of code."""
    return data.startswith(_CODE)


def mark_of_code(which: Which) -> bytes:
    """Return the mark of code."""
    return mark(f"code {which.text}")


def holds_numbers(value: Any) -> bool:
    """Whether it is a tensor or an array of numpy that can have a mark."""
    kind = type(value)
    if kind in _PLAIN:
        return bool(value.is_leaf and value.device.type == "cpu" and value.layout is torch.strided)
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    return array is not None and kind is array and not value.dtype.hasobject


def mark_of(value: Any) -> bytes | None:
    """Return the mark of this value. None: it has none."""
    if type(value) in (torch.dtype, torch.device):
        return mark(str(value))
    if type(value) is Which:
        return mark_of_code(value)
    if type(value) is Crowd:
        return mark_of_crowd(value)
    if not holds_numbers(value):
        return None
    if type(value) in _PLAIN:
        return _of_tensor(value)
    return _NUMBERS + f"{value.dtype} {value.shape} {zlib.crc32(value.flat[:: _every(value.size)].tobytes())}".encode()


def is_of_numbers(data: bytes) -> bool:
    """Whether this is the mark of a tensor or of an array."""
    return data.startswith(_NUMBERS)


def take_anew() -> None:
    """Take the marks of all tensors anew: writes by way of `.data` are not counted, so the last ones may be old."""
    _seen.clear()


def _of_tensor(tensor: torch.Tensor) -> bytes:
    version, seen = -1 if tensor.is_inference() else tensor._version, _seen.get(id(tensor))
    if seen is None or seen.tensor() is not tensor or version != seen.version or version < 0:
        few = tensor.detach().reshape(-1)[:: _every(tensor.numel())]
        data = _NUMBERS + f"{tensor.dtype} {tensor.shape} {zlib.crc32(bytes_of(few))}".encode()
        key = id(tensor)
        seen = _seen[key] = _Seen(weakref.ref(tensor, lambda gone: _forget(key, gone)), version, data)
    return seen.data


def _forget(key: int, gone: weakref.ref[torch.Tensor]) -> None:
    if key in _seen and _seen[key].tensor is gone:
        del _seen[key]


def _every(count: int) -> int:
    return 1 + count // _ELEMENTS
