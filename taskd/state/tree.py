"""Converts nested state (the result of `state_dict`) to bytes and tensors and back, without ever running code.

Optimizers, schedulers and scalers describe themselves as nested dicts of numbers, texts and tensors. Moving that to
another process must not use pickle, because anyone who can write a pickle controls the process that reads it. So the
tree is written as msgpack with a tag per kind. The tensors are listed beside it, because they are sent separately, in
chunks. A value keeps its type: members of enumerations and named tuples go by the name of their class, which the reader
looks up among the modules that it has imported. Subclasses of dict, list and numbers become plain. A value of any other
kind is refused with its path. This module does NOT move anything and knows nothing of
ranks.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from enum import Enum, EnumMeta
from pathlib import Path
from typing import Any

import msgpack
import torch

from taskd.errors import PeerError, UsageError

MAX_DEPTH = 64
MAX_BYTES = 64 << 20
"""The part that is not tensors: hyper-parameters, counters, positions. More than this is data, not state."""

_PLAIN = frozenset((bool, float, str, bytes, type(None)))
_PATH = type(Path())
_MADE_OF: dict[str, Callable[[list[Any]], Any]] = {"l": list, "t": tuple, "S": set, "F": frozenset}
_PLAIN_TENSOR = torch.Tensor.__torch_dispatch__
"""Tensors with another one are not where their address is: shards (see shards.py), quantized ones."""


class _Writer:
    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []

    def write(self, value: Any, path: str, depth: int) -> Any:
        """Return the tagged form of one value: [tag, payload...]."""
        if depth > MAX_DEPTH:
            raise UsageError(f"{path} is nested deeper than {MAX_DEPTH} levels, which no state needs: is it a cycle?")
        if type(value) in _PLAIN:
            return ["p", value]
        if isinstance(value, Enum):  # before numbers and texts: many of them are an int or a str, too
            return ["e", *_place_of(type(value), path), self.write(value.value, path, depth + 1)]
        if (array := _array(value)) is not None:  # before numbers: numpy.float64 is a float, too
            return array
        if isinstance(value, (float, str, bytes)):
            return ["p", value]
        if isinstance(value, int):
            return ["p", value] if -(2**63) <= value < 2**64 else ["i", hex(value)]
        if isinstance(value, torch.Tensor) and type(value).__torch_dispatch__ is _PLAIN_TENSOR:
            self.tensors.append(value)
            return ["T", len(self.tensors) - 1, str(value.dtype), list(value.shape), str(value.device.type)]
        if isinstance(value, dict):
            return [
                "d",
                [
                    [self.write(k, path, depth + 1), self.write(v, f"{path}[{k!r}]", depth + 1)]
                    for k, v in value.items()
                ],
            ]
        if isinstance(value, torch.Size):
            return ["s", list(value)]
        if isinstance(value, (list, tuple)):
            items = [self.write(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(value)]
            if _is_named_tuple(type(value)):
                return ["N", *_place_of(type(value), path), items]
            return ["l" if isinstance(value, list) else "t", items]
        if isinstance(value, (set, frozenset)):
            tag = "S" if isinstance(value, set) else "F"
            return [tag, [self.write(item, path, depth + 1) for item in sorted(value, key=repr)]]
        if isinstance(value, torch.dtype):
            return ["y", str(value)]
        if isinstance(value, torch.device):
            return ["v", str(value)]
        if type(value) is _PATH:
            return ["P", str(value)]
        raise UsageError(
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which cannot go to another process: "
            "state may hold numbers, texts, paths, bytes, tensors, arrays and lists, tuples, dicts and sets of them"
        )


def _array(value: Any) -> list[Any] | None:
    """Return the tagged form of numbers of numpy, or nothing if it is something else."""
    numpy = sys.modules.get("numpy")  # a value can be a numpy array only if numpy is imported already
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.kind not in "biufc":
        return None
    kind = "n" if isinstance(value, numpy.ndarray) else "g"
    return [kind, value.dtype.str, list(value.shape), value.tobytes()]


def _place_of(kind: type, path: str) -> tuple[str, str]:
    """Return the module and the name of a class that another process finds there, too."""
    if _class_at(kind.__module__, kind.__qualname__) is not kind:
        raise UsageError(
            f"{path} is a {kind.__module__}.{kind.__qualname__}, which another process cannot find under that name: "
            "define this class at the top of a module"
        )
    return kind.__module__, kind.__qualname__


def _class_at(module: str, name: str) -> Any:
    """Return what a module that is imported already has under this name. Nothing is imported."""
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def flatten(value: Any, path: str = "state") -> tuple[bytes, list[torch.Tensor]]:
    """Return the tree as bytes, and its tensors in order. Raises UsageError with the path of what cannot be sent."""
    writer = _Writer()
    text: bytes = msgpack.packb(writer.write(value, path, 0), use_bin_type=True)
    if len(text) > MAX_BYTES:
        raise UsageError(f"{path} holds {len(text)} bytes beside its tensors; at most {MAX_BYTES} can be moved")
    return text, writer.tensors


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise PeerError(f"a state names the dtype {name!r}, which this torch does not have")
    return found


def _read(node: Any, tensors: list[torch.Tensor]) -> Any:
    tag = node[0]
    if tag == "p":
        if type(node[1]) is not int and type(node[1]) not in _PLAIN:
            raise PeerError("a state holds a plain value of no known kind")
        return node[1]
    if tag == "i":
        return int(node[1], 16)
    if tag == "T":
        return tensors[node[1]]
    if tag == "d":
        return {_read(key, tensors): _read(item, tensors) for key, item in node[1]}
    if tag == "s":
        return torch.Size(node[1])
    if tag in _MADE_OF:
        return _MADE_OF[tag]([_read(item, tensors) for item in node[1]])
    if tag == "e":
        return _known(node, lambda kind: isinstance(kind, EnumMeta))(_read(node[3], tensors))
    if tag == "N":
        return tuple.__new__(_known(node, _is_named_tuple), [_read(item, tensors) for item in node[3]])
    if tag == "y":
        return _dtype(node[1])
    if tag == "v":
        return torch.device(node[1])
    if tag == "P":
        return _PATH(node[1])
    if tag in ("n", "g"):
        import numpy

        array = numpy.frombuffer(node[3], dtype=numpy.dtype(node[1])).reshape(node[2]).copy()
        return array if tag == "n" else array[()]
    raise PeerError(f"a state holds a value of the unknown kind {tag!r}")


def _is_named_tuple(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "_fields")


def _known(node: list[Any], fits: Callable[[Any], bool]) -> Any:
    """Return the class that a node names, if it is of the right kind."""
    found = _class_at(node[1], node[2])
    if not fits(found):
        raise PeerError(f"a state holds a {node[1]}.{node[2]}, which this process does not know")
    return found


def _parse(text: bytes) -> Any:
    if len(text) > MAX_BYTES:
        raise PeerError(f"a state of {len(text)} bytes is longer than the {MAX_BYTES} allowed")
    try:
        return msgpack.unpackb(text, raw=False, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise PeerError(f"a state could not be read: {error}") from error


def unflatten(text: bytes, tensors: list[torch.Tensor]) -> Any:
    """Return the tree again. Raises PeerError if the bytes are not such a tree."""
    try:
        return _read(_parse(text), tensors)
    except (IndexError, TypeError, KeyError, ValueError, RecursionError) as error:
        raise PeerError(f"a state could not be read: {error}") from error


def layout(text: bytes) -> list[tuple[torch.dtype, list[int], str]]:
    """dtype, shape and kind of device of every tensor the tree refers to, in order: what a receiver has to allocate."""

    def walk(node: Any) -> Iterator[tuple[int, torch.dtype, list[int], str]]:
        if node[0] == "T":
            yield node[1], _dtype(node[2]), [int(size) for size in node[3]], str(node[4])
        elif node[0] == "d":
            for key, item in node[1]:
                yield from walk(key)
                yield from walk(item)
        elif node[0] in _MADE_OF:
            for item in node[1]:
                yield from walk(item)
        elif node[0] == "N":
            for item in node[3]:
                yield from walk(item)

    try:
        found = sorted(walk(_parse(text)), key=lambda entry: entry[0])
    except (IndexError, TypeError, ValueError, RecursionError) as error:
        raise PeerError(f"a state could not be read: {error}") from error
    if [entry[0] for entry in found] != list(range(len(found))):
        raise PeerError("a state numbers its tensors wrongly")
    return [entry[1:] for entry in found]


def pack(value: Any, path: str = "state") -> list[bytes]:
    """Return a tree with its tensors inline, as pieces to be written in order: for small state on the same host."""
    text, tensors = flatten(value, path)
    return [len(text).to_bytes(8, "little"), text, *(bytes_of(tensor) for tensor in tensors)]


def unpack(data: bytes) -> Any:
    """Read what `pack` wrote. Raises PeerError if the bytes are not such a tree."""
    size = int.from_bytes(data[:8], "little")
    text, at = data[8 : 8 + size], 8 + size
    tensors = []
    for dtype, shape, _device in layout(text):
        tensor = torch.empty(shape, dtype=dtype)
        if at + tensor.nbytes > len(data):
            raise PeerError("a state is shorter than its tensors")
        if tensor.nbytes:
            ctypes.memmove(tensor.data_ptr(), data[at : at + tensor.nbytes], tensor.nbytes)
        at += tensor.nbytes
        tensors.append(tensor)
    return unflatten(text, tensors)


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor's memory as a flat tensor of bytes (a view: writing to it writes to the tensor)."""
    return tensor.detach().reshape(-1).view(torch.uint8)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """A tensor's elements, in order, as bytes of the host."""
    host = tensor.detach().cpu().contiguous()
    return ctypes.string_at(host.data_ptr(), host.nbytes)
