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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from io import IOBase
from itertools import chain, islice
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch

from taskd.state.held import digest_of, is_array, place_of
from taskd.state.places import space_of
from taskd.state.rng import is_generator
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

Thing = tuple[str, Any]
"""A name in the loop, and what is there."""
Findings = dict[str, int]
"""By the name in the loop, a digest."""


def findings_of(things: Iterable[Thing], known: Set[int], places: Set[int]) -> Findings:
    """What is in these. `known`: objects that are registered, by id; `places`: where registered tensors lie."""
    found = Findings()
    for name, value in things:
        leaves = [leaf for leaf in _walk(value, _is_leaf, known) if place_of(leaf) not in places]
        if leaves:
            found[name] = digest_of(leaves[:_MOST])
    return found


def unlike(mine: Findings, before: Findings) -> list[str]:
    """The names under which the life before had something else."""
    return sorted(name for name in mine.keys() & before.keys() if mine[name] != before[name])


def generators_in(things: Iterable[Thing]) -> list[Any]:
    """The generators of random numbers in these."""
    found = {id(one): one for _, value in things for one in _walk(value, is_generator)}
    return [*found.values()][:_MOST]


def iterators_in(things: Iterable[Thing], known: Set[int]) -> list[str]:
    """The names of what gives something else each time it is asked, but for what is being asked for this very step."""
    return sorted({name for name, value in things if id(value) not in known and _is_iterator(value)})


def _is_iterator(value: Any) -> bool:
    if not hasattr(type(value), "__next__") or isinstance(value, IOBase):
        return False
    return not (isinstance(value, GeneratorType) and value.gi_running)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_array(value)


def _walk(value: Any, wanted: Callable[[Any], bool], known: Set[int] = frozenset()) -> Iterator[Any]:
    """What is wanted in it."""
    todo, seen = [(value, _DEPTH)], set[int]()
    while todo and len(seen) < _LOOKED_AT:
        one, depth = todo.pop()
        if id(one) in seen or id(one) in known:
            continue
        seen.add(id(one))
        if wanted(one):
            yield one
        elif depth:
            todo += [(part, depth - 1) for part in reversed([*islice(_parts(one), _LOOKED_AT)])]


def _parts(one: Any) -> Iterable[Any]:
    kind = type(one)
    if isinstance(one, torch.nn.Module):
        tensors = [tensor for tensor in (*one.parameters(), *one.buffers()) if _has_contents(tensor)]
        return chain(tensors, filter(is_generator, (part for child in one.modules() for part in vars(child).values())))
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
