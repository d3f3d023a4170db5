"""Decides from its contents whether something that a loop hands from step to step has moved.

The rule: it has moved once its contents differ from those at an earlier look in the same loop, in the same shape. Once
is enough, however long ago: no newcomer has a target network that is copied every thousand steps. A mask that is made
anew, for a short batch or for each epoch, has the contents of the mask before and has not moved.

A look usually checks only whether a tensor was replaced or written to. Contents are compared if so, in the first looks
of a loop, and whenever it is important (`closely`): at a loop's end, and after a repair.

Something that was made in the loop, has changed its shape, or has been replaced when the next loop begins may have
moved or not. A list that grows again and again has moved. Numbers that change in lists, dicts and dataclasses
(`losses.append(loss.item())`) may matter or not.
Arrays of numpy count as tensors. This module does NOT know what is registered. It sees only some elements of a large
tensor.
"""

from __future__ import annotations

import dataclasses
import sys
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch

from taskd.state.places import NUMBERS, attribute_of
from taskd.state.shards import shard_of, version_of
from taskd.state.strange import strange
from taskd.state.tree import bytes_of

_DEPTH = 3
_MOST = 64
"""At most this many tensors of one thing."""
_LOOKED_AT = 256
"""At most this many items of any kind in one thing."""
_ELEMENTS = 1024
"""Elements of each tensor that are compared, spread over all of it."""
_SHAPES = 16
"""Shapes whose contents are remembered."""
_CLOSE_LOOKS = 3
"""Looks at the beginning of each loop that compare contents: writing through `.data` does not raise the version."""
_GROWN = 3
"""A list that has grown in this many looks in a row has moved: it does not just remember what was computed once."""
_NOWHERE = -1
_UNKNOWN = -1
"""Stands for the version of a tensor whose writes are not counted."""
Leaf = Any
"""A tensor, or an array of numpy."""


class Mark(NamedTuple):
    """A tensor, with what shows that it may have changed, without a look at its contents."""

    leaf: weakref.ref[Leaf]
    version: int
    place: int

    @classmethod
    def of(cls, leaf: Leaf) -> Mark:
        counted = isinstance(leaf, torch.Tensor) and not leaf.is_inference()
        return cls(weakref.ref(leaf), version_of(leaf) if counted else _UNKNOWN, place_of(leaf))

    def is_still(self, other: Mark) -> bool:
        """Whether it is the same tensor, or another view of the same memory, and was not written to."""
        at_one_place = self.place == other.place != _NOWHERE
        return self.version == other.version != _UNKNOWN and (at_one_place or self.leaf() is other.leaf())


@dataclass(slots=True)
class Held:
    """One thing that a loop hands on."""

    looks: int = 0
    """Looks in this loop, including those before the thing existed."""
    moved: bool = False
    """It has moved."""
    perhaps: bool = False
    """It may have moved."""
    digest: int = 0
    """A digest of what it was at the last look, the same in every process; 0: nothing."""
    _marks: list[Mark] = field(default_factory=list)
    _contents: dict[Any, int] = field(default_factory=dict)
    """The contents at the last look, by shape."""
    _of_leaves: int = 0
    _counts: int = 0
    """A digest of its numbers and the lengths of its lists at the last look."""
    _grown: int = 0
    """In how many looks in a row the list was longer than before."""

    def begin(self) -> None:
        """A loop begins."""
        self.looks = 0

    def look(self, value: Any, closely: bool, again: bool = False) -> None:
        """Look once more. `again`: the step is done again, so a thing that is new has moved."""
        leaves, numbers = _walk(value)
        marks = list(map(Mark.of, leaves))
        still = len(marks) == len(self._marks) and all(map(Mark.is_still, self._marks, marks))
        if leaves and (closely or not still or self.looks < _CLOSE_LOOKS):
            self._compare(leaves, again)
        longer = isinstance(value, (list, deque)) and len(marks) > len(self._marks) > 0
        self._grown = self._grown + 1 if longer else 0
        self.moved = self.moved or self._grown == _GROWN
        self._marks = marks
        counts = _of_numbers(numbers)
        self.perhaps = self.perhaps or (self.looks > 0 and counts != self._counts)
        self._counts = counts
        self.digest = (self._of_leaves if leaves else 0) ^ (counts if numbers else 0)
        self.looks += 1

    def _compare(self, leaves: list[Leaf], again: bool) -> None:
        shape = tuple(map(_shape, leaves))
        self._of_leaves = digest_of(leaves)
        contents = hash((self._of_leaves, *[leaf._version for leaf in leaves if _shape(leaf) is None]))
        before = self._contents.pop(shape, None)
        if before is not None and before != contents:
            self.moved = self.moved or self.looks > 0
            self.perhaps = True  # if not in the loop, then between two loops
        elif before is None and (self.looks or self._contents):
            self.moved = self.moved or (again and not self._marks)
            self.perhaps = True
        self._contents[shape] = contents
        if len(self._contents) > _SHAPES:
            del self._contents[next(iter(self._contents))]


def leaves_of(value: Any) -> list[Leaf]:
    """Return the first tensors and arrays in it. A container that another thread changes meanwhile is left out."""
    return _walk(value)[0]


def _walk(value: Any) -> tuple[list[Leaf], list[float]]:
    """Return the first tensors and arrays in it, and its first numbers, with texts and lengths as numbers."""
    leaves, numbers = list[Leaf](), list[float]()
    todo, seen = [(value, _DEPTH)], 0
    while todo and seen < _LOOKED_AT:
        one, depth = todo.pop()
        seen += 1
        if isinstance(one, torch.Tensor) or is_array(one):
            leaves.append(one)
        elif type(one) in NUMBERS:
            numbers.append(one)
        elif type(one) is str:
            numbers.append(zlib.crc32(one.encode(errors="replace")))
        elif depth:
            if isinstance(one, (dict, list, tuple, deque, set)):
                numbers.append(len(one))
            todo += [(part, depth - 1) for part in reversed(_parts(one))]
    return leaves[:_MOST], numbers


def _parts(value: Any) -> list[Any]:
    if dataclasses.is_dataclass(type(value)):
        return [attribute_of(value, one.name) for one in dataclasses.fields(value)]
    if not isinstance(value, (dict, list, tuple, deque)):
        return []
    try:
        return [*islice(value.values() if isinstance(value, dict) else value, _LOOKED_AT)]
    except RuntimeError:  # another thread has changed it meanwhile
        return []


def is_array(value: Any) -> bool:
    """Whether it is a numpy array without Python objects in it."""
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    return kind is not None and isinstance(value, kind) and not value.dtype.hasobject


def place_of(leaf: Leaf) -> int:
    """Return the address of its contents. If it has none, return a number that is no address."""
    if not isinstance(leaf, torch.Tensor):
        place: int = leaf.__array_interface__["data"][0]
        return place
    return _NOWHERE if _has_no_contents(leaf) else shard_of(leaf).data_ptr()


def _has_no_contents(tensor: torch.Tensor) -> bool:
    return torch.nn.parameter.is_lazy(tensor) or bool(strange(shard_of(tensor)))


def _shape(leaf: Leaf) -> Any:
    """Return its shape, dtype and device, without a look at its contents."""
    if not isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype.str
    return None if _has_no_contents(leaf) else (leaf.shape, leaf.dtype, leaf.device)


def digest_of(leaves: Iterable[Leaf]) -> int:
    """Return a digest of these, the same in every process."""
    found = 0
    for leaf in leaves:
        found = zlib.crc32(repr((tuple(leaf.shape), leaf.dtype)).encode() if _shape(leaf) else b"", found)
        found = zlib.crc32(_some_of(leaf), found)
    return found


def _of_numbers(numbers: list[float]) -> int:
    try:
        return zlib.crc32(array("d", numbers))
    except OverflowError:
        return zlib.crc32(repr(numbers).encode())


def _some_of(leaf: Leaf) -> bytes:
    """Return some elements, as bytes, because NaN is unequal to itself."""
    if not isinstance(leaf, torch.Tensor):
        found: bytes = leaf.flat[:: 1 + leaf.size // _ELEMENTS].tobytes()
        return found
    if _has_no_contents(leaf):
        return b""
    row = shard_of(leaf).detach()
    if row.is_contiguous():
        row = row.view(-1)
    while row.dim() > 1:
        row = row[0]
    few = row.reshape(-1) if row.dim() != 1 else row
    few = few[:: 1 + few.numel() // _ELEMENTS]
    return bytes_of(few.resolve_neg().resolve_conj() if few.is_neg() or few.is_conj() else few)
