"""What a loop finds when it begins and nobody registered: a teacher that was copied from the model, noise, old targets.

A newcomer runs the set-up once more, and what stands between the loops that are over. It has no trained weights yet, so
what is reckoned from weights there comes out otherwise. All ranks would then be led astray alike, and no comparison
between ranks could show it. Therefore each rank notes, when a loop begins, what is in the tensors that the loop reads
(counters.py says which names these are). A newcomer compares that with the note of its life before.

Tensors, arrays and modules are looked at, in containers, closures and objects, and some elements of each. What is
registered is not among them. It does NOT look at plain numbers, and it decides nothing.
"""

from __future__ import annotations

import functools
import sys
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Set
from itertools import chain, islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

from taskd.state.held import Leaf, is_array, place_of, shape_of, some_of
from taskd.state.places import space_of
from taskd.state.sources import passed_over
from taskd.state.strange import strange

_DEPTH = 6
_LOOKED_AT = 512
"""Items in one thing, whatever they are."""
_MOST = 64
"""Tensors of one thing."""

_OTHERS = ("taskd.", "torch.utils.data", "torch.distributed", "torch.optim", "torch.cuda", "torch.profiler", "torch._")
_BARE = ("__main__", "types", "argparse")
"""Of the standard library: objects that only hold what a script has put there."""

Findings = dict[str, int]
"""By the name in the loop, a digest."""


def table_of(things: Iterable[tuple[str, Any]], known: Set[int], places: Set[int]) -> Findings:
    """What is in these. `known`: objects that are registered, by id; `places`: where registered tensors lie."""
    found = Findings()
    for name, value in things:
        leaves = [leaf for leaf in islice(_leaves(value, known), _LOOKED_AT) if place_of(leaf) not in places]
        if leaves:
            found[name] = _digest(leaves[:_MOST])
    return found


def unlike(mine: Findings, before: Findings) -> list[str]:
    """The names under which the life before had something else."""
    return sorted(name for name in mine.keys() & before.keys() if mine[name] != before[name])


def _leaves(value: Any, known: Set[int]) -> Iterator[Leaf]:
    todo, seen = [(value, _DEPTH)], set[int]()
    while todo and len(seen) < _LOOKED_AT:
        one, depth = todo.pop()
        if id(one) in seen or id(one) in known:
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor) or is_array(one):
            yield one
        elif depth:
            todo += [(part, depth - 1) for part in reversed([*islice(_parts(one), _LOOKED_AT)])]


def _parts(one: Any) -> Iterable[Any]:
    kind = type(one)
    if isinstance(one, torch.nn.Module):
        return [tensor for tensor in (*one.parameters(), *one.buffers()) if _has_contents(tensor)]
    if issubclass(kind, ModuleType | type):
        return ()
    if issubclass(kind, FunctionType):
        if passed_over(one.__code__.co_filename, one.__code__.co_name):
            return ()
        return [*(one.__defaults__ or ()), *_cells(one)]
    if issubclass(kind, MethodType):
        return (one.__self__, one.__func__)
    if issubclass(kind, functools.partial):
        return (one.func, *one.args, *one.keywords.values())
    items = _items(one) if issubclass(kind, (dict, list, tuple, set, deque)) else []
    return chain(items, () if _is_of_others(kind) else space_of(one).values())


def _items(one: Any) -> list[Any]:
    try:
        return [*islice(one.values() if isinstance(one, dict) else one, _LOOKED_AT)]
    except RuntimeError:  # it was changed by another thread
        return []


def _is_of_others(kind: type) -> bool:
    """Whether an object of this class keeps what threads put there, or what is registered."""
    name = str(kind.__module__)
    root = name.partition(".")[0]
    return name.startswith(_OTHERS) or (root in sys.stdlib_module_names and root not in _BARE)


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # nothing is in it yet
            continue


def _has_contents(tensor: torch.Tensor) -> bool:
    return not torch.nn.parameter.is_lazy(tensor) and not strange(tensor)


def _digest(leaves: list[Leaf]) -> int:
    """The same in every process."""
    found = 0
    for leaf in leaves:
        found = zlib.crc32(repr(shape_of(leaf)).encode(), found)
        found = zlib.crc32(some_of(leaf), found)
    return found
