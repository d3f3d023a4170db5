"""Plain values as bytes: numbers, text, flags, nothing, and lists, tuples, dicts, sets and deques of them.

A value made from the bytes is equal and of the same type, with two exceptions: a defaultdict loses its factory, and a
bytearray becomes bytes. Other objects are made again from plain parts (remade.py). Some values are too large to be
kept, or cannot be made again without code of the script. They become a digest, which can be compared but not given. The
bytes say whether they are a value or a digest.

It is one call of msgpack, so a long history of numbers costs little. Values that msgpack does not know go to `_other`.
No code of the script is run; only objects of the standard library are asked for their text.
"""

from __future__ import annotations

import sys
import zlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Set
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from itertools import islice
from typing import Any

import msgpack
import torch

from taskd.errors import PeerError
from taskd.state.remade import is_named_tuple, made_from, parts_of
from taskd.state.tree import bytes_of

MOST_BYTES = 8 << 20
"""Most bytes of one value that can be given."""
MOST_OF_TENSORS = 1 << 18
"""Most bytes of tensors that are kept as values."""
MOST_SHOWN = 1 << 16
"""Most bytes of lists that are only shown, and kept."""
_MOST_TENSORS = 256
"""Of a list with more other items than numbers and texts, none is kept."""
_MOST_ITEMS = 1 << 20
"""Most items of a list that is looked at whole."""
_FEW = 512
"""Items of a longer list that are looked at."""
_FIRST = 8
"""So many keys of a dict show whether they are ids."""
_ROWS = (list, deque, dict, tuple)
_ROW_ITEMS = frozenset({int, float, str})
"""Flags and None are left out: they may say that something was done which no repair undoes."""
_MOST_ROWS = 4096
_LAYERS = 2
_SCALARS = (bool, int, float, str, type(None))
_SHOWN = (Enum, Decimal, Fraction, date, time, timedelta)
"""Types whose text says everything about a value."""
_DIGEST = b"\xc1"
"""The first byte of a digest. Nothing that msgpack writes begins with it."""
_LARGE, _TUPLE, _SET, _FROZEN, _DEQUE, _COMPLEX, _NUMPY, _DICT, _TENSOR, _ARRAY, _REMADE = range(1, 12)
_DICTS = (OrderedDict, defaultdict, Counter)

Noted = dict[str, bytes]
"""Packed values by name."""


class _NotPlainError(Exception):
    pass


class _OnlyComparedError(Exception):
    """The value has a part that cannot be made again."""


def packed(value: Any) -> bytes | None:
    """Return the value as bytes, or a digest of it. None: it is not plain."""
    kind = type(value)
    if kind in (list, tuple) and len(value) > _MOST_ITEMS:
        few = value[:: 1 + len(value) // _FEW]
        return None if (data := packed([len(value), *few])) is None else _digest(data)
    try:
        return _shortened(_pack(value, _other), MOST_BYTES)
    except _OnlyComparedError:
        pass
    except (_NotPlainError, ValueError, OverflowError, RuntimeError):
        return None
    try:
        return _digest(_pack(value, _other_shown))
    except (_NotPlainError, ValueError, OverflowError, RuntimeError):
        return None


def unpacked(data: bytes) -> Any:
    """Return the value that `packed` has packed. Raises PeerError."""
    try:
        return msgpack.unpackb(data, ext_hook=_kind, list_hook=_read, strict_map_key=False)
    except (ValueError, TypeError, KeyError, ArithmeticError, msgpack.exceptions.UnpackException) as error:
        raise PeerError(f"a plain value could not be read: {error}") from error


def can_be_given(data: bytes) -> bool:
    """Whether this is a value and not only a digest."""
    return not data.startswith(_DIGEST)


def mark(text: str) -> bytes:
    """Return a digest that stands for something of which only matters that it is there. It begins with its text."""
    return _DIGEST + text.encode()


def shortened(noted: Noted, most: int) -> Noted:
    """Return the same with digests in place of longer values."""
    return {name: _shortened(data, most) for name, data in noted.items()}


def rows_of(value: Any, tensors: bool = False) -> bytes | None:
    """Return a list, deque or dict of numbers and texts, or of such lists, as bytes. None: it is something else, or it
    is long. `tensors`: there may be tensors and arrays in it, or it may be one; then dicts are plain ones."""
    if not tensors:
        return packed(value) if _is_of_rows(value, _LAYERS, tensors) else None
    try:
        return _pack(value, _other_in_rows) if may_be_row(value) else None
    except (_NotPlainError, _OnlyComparedError, ValueError, OverflowError, RuntimeError):
        return None


def may_be_row(value: Any) -> bool:
    """Whether it is a tensor or an array that can be given, or a list, deque or dict with a few of them."""
    return is_kept(value) or _is_of_rows(value, _LAYERS, True)


def _is_of_rows(value: Any, layers: int, tensors: bool) -> bool:
    kind = type(value)
    if kind not in (_ROWS if tensors else (*_ROWS, Counter, OrderedDict)) or len(value) > _MOST_ROWS:
        return False
    has_keys = issubclass(kind, dict)
    items = value.values() if has_keys else value
    if not _ROW_ITEMS.issuperset(map(type, value if has_keys else ())):
        return False
    others = [item for item in items if type(item) not in _ROW_ITEMS]
    if tensors and len(others) <= _MOST_TENSORS:
        others = [item for item in others if not is_kept(item)]
    return not others or (layers > 0 and all(_is_of_rows(item, layers - 1, tensors) for item in others))


def is_by_id(value: Any, known: Set[int]) -> bool:
    """Whether it is a dict whose keys are the ids of these objects."""
    few = [*islice(value, _FIRST)] if type(value) is dict else []
    return all(type(key) is int for key in few) and any(key in known for key in few)


def is_number(value: Any) -> bool:
    """Whether it is a number. A flag is not a number."""
    return type(value) in (int, float)


def is_scalar(value: Any) -> bool:
    """Whether it is plain and has no parts."""
    return type(value) in _SCALARS


def is_kept(value: Any) -> bool:
    """Whether it is a tensor or an array that can be given as a value: not large, on a CPU, its memory its own, and
    nothing that is trained."""
    if type(value) is torch.Tensor:
        trained = value.is_leaf and value.requires_grad
        plain = not trained and value.layout is torch.strided and not value.is_quantized
        plain = plain and value.device.type == "cpu" and not value.is_inference() and value.is_contiguous()
        plain = plain and not (value.is_conj() or value.is_neg() or value.is_nested)
        return plain and value.nbytes <= MOST_OF_TENSORS and value.untyped_storage().nbytes() == value.nbytes
    array = getattr(sys.modules.get("numpy"), "ndarray", None)
    if array is None or type(value) is not array or value.dtype.kind not in "biufc":
        return False
    alone = value.base is None and value.flags.c_contiguous and value.flags.writeable
    return bool(alone and value.nbytes <= MOST_OF_TENSORS)


def filled(there: Any, value: Any) -> bool:
    """Give the object `there` these contents, if it can change and has the same type. Return whether it did."""
    kind = type(there)
    if kind is not type(value) and (kind, type(value)) != (bytearray, bytes):
        return False
    if kind in (list, bytearray):
        there[:] = value
    elif kind in (dict, set, *_DICTS):
        there.clear()
        there.update(value)
    elif kind is deque:
        there.clear()
        there.extend(value)
    else:
        return False
    return True


def _shortened(data: bytes, most: int) -> bytes:
    return data if len(data) <= most else _digest(data)


def _digest(data: bytes) -> bytes:
    return _DIGEST + b"%d %08x" % (len(data), zlib.crc32(data))


def _pack(value: Any, other: Callable[[Any], Any]) -> bytes:
    data: bytes = msgpack.packb(value, default=other, strict_types=True)
    return data


def _other(value: Any) -> Any:
    """Convert a value that msgpack does not write by itself, or would not give back as it was."""
    if (parts := _parts(value)) is not None:
        return [msgpack.ExtType(parts[0], b""), *parts[1]]
    if (remade := parts_of(value)) is not None:
        return [msgpack.ExtType(_REMADE, b""), *remade]
    if issubclass(kind := type(value), _SHOWN) or is_named_tuple(kind):
        raise _OnlyComparedError
    raise _NotPlainError


def _other_in_rows(value: Any) -> Any:
    if type(value) is torch.Tensor:
        dtype = str(value.dtype).removeprefix("torch.")
        return [msgpack.ExtType(_TENSOR, b""), dtype, [*value.shape], bytes_of(value)]
    if is_kept(value):
        return [msgpack.ExtType(_ARRAY, b""), value.dtype.str, [*value.shape], value.tobytes()]
    return _other(value)


def _other_shown(value: Any) -> Any:
    if (parts := _parts(value)) is not None:
        return [parts[0], *parts[1]]
    if issubclass(kind := type(value), _SHOWN):
        return [kind.__qualname__, _text_of(value)]
    if is_named_tuple(kind):
        return [kind.__qualname__, *tuple.__iter__(value)]
    raise _NotPlainError


def _text_of(value: Any) -> str:
    """Return the text that says everything about such a value."""
    if isinstance(value, Flag):
        return str(value._value_)  # the name of several flags together is empty on some versions of Python
    return value.name if isinstance(value, Enum) else repr(value)


def _parts(value: Any) -> tuple[int, Iterable[Any]] | None:
    """Return its kind, and the simpler values that it is made of. None: its kind is not known."""
    kind = type(value)
    if kind is tuple:
        return _TUPLE, value
    if kind is int:
        return _LARGE, [hex(value)]
    if kind in (set, frozenset):
        return _SET if kind is set else _FROZEN, sorted(value, key=_order)
    if kind is deque:
        return _DEQUE, [value.maxlen, *value]
    if kind is complex:
        return _COMPLEX, [value.real, value.imag]
    if kind in _DICTS:
        return _DICT, [_DICTS.index(kind), *([key, item] for key, item in value.items())]
    numpy = sys.modules.get("numpy")  # a value can be one of its numbers only if somebody has imported it
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.kind in "biufc":
        return _NUMPY, [value.dtype.str, value.tobytes()]
    return None


def _order(value: Any) -> bytes:
    """Return the key by which the items of a set are sorted. It does not use an object's own text."""
    if (data := packed(value)) is None:
        raise _NotPlainError
    return data


class _Kind(int):
    """Marks the parts of a value that is not a list, as their first item."""


def _kind(code: int, _: bytes) -> _Kind:
    return _Kind(code)


def _read(parts: list[Any]) -> Any:
    if not parts or type(parts[0]) is not _Kind:
        return parts
    return _MAKERS[parts[0]](*parts[1:])


def _number(dtype: str, data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(data, dtype=numpy.dtype(dtype))[0]


def _array(dtype: str, shape: list[int], data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(data, dtype=numpy.dtype(dtype)).reshape(shape).copy()


def _tensor(dtype: str, shape: list[int], data: bytes) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(shape)


def _dict(which: int, *items: tuple[Any, Any]) -> Any:
    made = dict(items)
    kind: Any = _DICTS[which]
    return defaultdict(None, made) if kind is defaultdict else kind(made)


_MAKERS: dict[int, Callable[..., Any]] = {
    _TUPLE: lambda *parts: parts,
    _LARGE: lambda text: int(text, 16),
    _SET: lambda *parts: {*parts},
    _FROZEN: lambda *parts: frozenset(parts),
    _DEQUE: lambda most, *parts: deque(parts, most),
    _COMPLEX: complex,
    _NUMPY: _number,
    _DICT: _dict,
    _TENSOR: _tensor,
    _ARRAY: _array,
    _REMADE: made_from,
}
