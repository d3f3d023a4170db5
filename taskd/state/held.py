"""Whether what a loop hands from step to step has moved, told by what it contains.

The rule: it has moved once it has other contents than at an earlier look in the same loop, in the same shape. Once is
enough, however long ago: a target network that is copied each thousand steps is what no newcomer has. A mask that is
made anew, for a short batch or for each epoch, has the contents of the one before and has not moved.

Between two looks it is asked only whether a tensor is another one or has been written to; contents are compared where
that is so, in the first looks, and whenever it counts (`closely`): at a loop's end, and after a repair.

What was made in the loop, has changed its shape, or is another one when the next loop begins, may have moved or not; a
list that grows and grows has. Numbers that change in lists, dicts and dataclasses (`losses.append(loss.item())`) may
matter or not.
Arrays of numpy count as tensors. It knows nothing of what is registered, and sees some elements of what is large.
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
from taskd.state.strange import strange
from taskd.state.tree import bytes_of

_DEPTH = 3
_MOST = 64
"""Tensors of one thing."""
_LOOKED_AT = 256
"""Items in it, whatever they are."""
_ELEMENTS = 1024
"""Of each tensor that are compared, spread over all of it."""
_SHAPES = 16
"""That are remembered."""
_CLOSE_LOOKS = 3
"""At the beginning of each loop: a version does not grow when a script writes through `.data`."""
_GROWN = 3
"""Looks: then a list is no memory of what was reckoned once."""
_NOWHERE = -1
_UNKNOWN = -1
"""A version: nobody counts who writes into it."""
Leaf = Any
"""A tensor, or an array of numpy."""


class Mark(NamedTuple):
    """A tensor, and what tells without looking into it that it may have changed."""

    leaf: weakref.ref[Leaf]
    version: int
    place: int

    @classmethod
    def of(cls, leaf: Leaf) -> Mark:
        counted = isinstance(leaf, torch.Tensor) and not leaf.is_inference()
        return cls(weakref.ref(leaf), leaf._version if counted else _UNKNOWN, place_of(leaf))

    def is_still(self, other: Mark) -> bool:
        """Another view of the same contents is the same."""
        at_one_place = self.place == other.place != _NOWHERE
        return self.version == other.version != _UNKNOWN and (at_one_place or self.leaf() is other.leaf())


@dataclass(slots=True)
class Held:
    """One thing that a loop hands on."""

    looks: int = 0
    """In this loop, also while it was nothing."""
    moved: bool = False
    """It has."""
    perhaps: bool = False
    """It may have."""
    digest: int = 0
    """Of what it was at the last look, the same in every process; 0: nothing."""
    _marks: list[Mark] = field(default_factory=list)
    _contents: dict[Any, int] = field(default_factory=dict)
    """By shape, those of the last look at each."""
    _of_leaves: int = 0
    _counts: int = 0
    """The numbers in it, and how long its lists are, at the last look."""
    _grown: int = 0
    """In how many looks, one after the other, the list was longer."""

    def begin(self) -> None:
        """A loop begins."""
        self.looks = 0

    def look(self, value: Any, closely: bool, again: bool = False) -> None:
        """Look once more. `again`: its step is done again, so what has come meanwhile has moved."""
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
            self.perhaps = True  # if not in the loop, then by what stands between two
        elif before is None and (self.looks or self._contents):
            self.moved = self.moved or (again and not self._marks)
            self.perhaps = True
        self._contents[shape] = contents
        if len(self._contents) > _SHAPES:
            del self._contents[next(iter(self._contents))]


def leaves_of(value: Any) -> list[Leaf]:
    """The first tensors and arrays in it. Whoever changes it meanwhile, in another thread, is not looked at."""
    return _walk(value)[0]


def _walk(value: Any) -> tuple[list[Leaf], list[float]]:
    """The first tensors and arrays in it; and its first numbers, text as one, and how long its containers are."""
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
    except RuntimeError:  # it was changed by another thread
        return []


def is_array(value: Any) -> bool:
    """Whether it is one of numpy's, of numbers."""
    kind = getattr(sys.modules.get("numpy"), "ndarray", None)
    return kind is not None and isinstance(value, kind) and not value.dtype.hasobject


def place_of(leaf: Leaf) -> int:
    """Where its contents lie; of what lies nowhere, a number that is no address."""
    if not isinstance(leaf, torch.Tensor):
        place: int = leaf.__array_interface__["data"][0]
        return place
    return _NOWHERE if _has_no_contents(leaf) else leaf.data_ptr()


def _has_no_contents(tensor: torch.Tensor) -> bool:
    return torch.nn.parameter.is_lazy(tensor) or bool(strange(tensor))


def _shape(leaf: Leaf) -> Any:
    """What it looks like from outside."""
    if not isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.dtype.str
    return None if _has_no_contents(leaf) else (leaf.shape, leaf.dtype, leaf.device)


def digest_of(leaves: Iterable[Leaf]) -> int:
    """Of what these are, the same in every process."""
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
    """Some elements, as bytes, because not-a-number is unequal to itself."""
    if not isinstance(leaf, torch.Tensor):
        found: bytes = leaf.flat[:: 1 + leaf.size // _ELEMENTS].tobytes()
        return found
    if _has_no_contents(leaf):
        return b""
    row = leaf.detach()
    if row.is_contiguous():
        row = row.view(-1)
    while row.dim() > 1:
        row = row[0]
    few = row.reshape(-1) if row.dim() != 1 else row
    few = few[:: 1 + few.numel() // _ELEMENTS]
    return bytes_of(few.resolve_neg().resolve_conj() if few.is_neg() or few.is_conj() else few)
