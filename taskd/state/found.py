"""What a loop finds when it begins, though it was not registered: a copied teacher model, noise, old targets.

A newcomer runs the set-up again, and the code between the finished loops. It has no trained weights yet. So whatever
that code computes from weights comes out different. All ranks would then go wrong in the same way, and no comparison
between ranks could show it. Therefore each rank notes what is in the tensors that a loop reads, when the loop begins
(counters.py says which names these are). A newcomer compares that with the note of its predecessor, the process that
it replaces.

Tensors, arrays and modules are looked at, in containers, closures and objects, and some elements of each. Registered
ones are left out. Of the loader, the search takes what chooses its samples: the tensors, arrays and lists of its
dataset and samplers. Numbers, text and flags are noted separately (plain.py). Those in an object are noted only if the
object is made anew for each loop, since an older object may count things of its own (leaves.py looks at those).
"""

from __future__ import annotations

import functools
import sys
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from io import IOBase
from itertools import chain, islice
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import torch

from taskd.state.held import digest_of, is_array, place_of
from taskd.state.leaves import Thing
from taskd.state.places import space_of
from taskd.state.plain import Noted, is_number, is_scalar, packed
from taskd.state.rng import is_generator
from taskd.state.shards import shard_of
from taskd.state.sources import passed_over
from taskd.state.strange import strange
from taskd.state.tree import bytes_of

_DEPTH = 6
_LOOKED_AT = 512
"""At most this many items of any kind are looked at in one thing."""
_MOST = 64
"""At most this many tensors of one thing."""

_OTHERS = ("taskd.", "torch.utils.data", "torch.distributed", "torch.optim", "torch.cuda", "torch.profiler", "torch._")
_BARE = ("__main__", "types", "argparse")
"""Modules of the standard library whose objects only hold what a script has put there."""

_TIMES_S = 1e7
"""A number that is this close to the current time is taken for a time."""
_CHOOSE = ("dataset", "datasets", "sampler", "batch_sampler")
"""Attributes of a loader, and of the objects in them, that choose its samples."""

Findings = dict[str, int]
"""A digest of each thing, by its name in the loop."""


def findings_of(things: Iterable[Thing], known: Set[int], places: Set[int]) -> Findings:
    """Return digests of the tensors in these. `known`: ids of registered objects; `places`: addresses of their
    tensors."""
    return {name: digest_of(leaves) for name, leaves in tensors_in(things, known, places).items()}


def tensors_in(things: Iterable[Thing], known: Set[int], places: Set[int]) -> dict[str, list[Any]]:
    """Return the first tensors and arrays in these, by name. For `known` and `places` see findings_of."""
    found = dict[str, list[Any]]()
    for name, value in things:
        leaves = [leaf for leaf in _walk(value, _is_leaf, known) if place_of(leaf) not in places]
        if leaves:
            found[name] = leaves[:_MOST]
    return found


def buffers_of(models: Mapping[str, torch.nn.Module]) -> Findings:
    """Return digests of all that is in the buffers of these models."""
    named = ((f"{label}.{name}", one) for label, model in models.items() for name, one in model.named_buffers())
    return {name: zlib.crc32(bytes_of(shard_of(one))) for name, one in named if _has_contents(one)}


def loaded_from(loader: Any) -> Findings:
    """Return digests of what chooses the samples of this loader."""
    if isinstance(loader, (list, tuple)):
        return findings_of([("the loader", loader)], frozenset(), frozenset())
    found, todo, seen = Findings(), [("the loader's ", loader)], set[int]()
    while todo:
        name, owner = todo.pop()
        if id(owner) in seen or len(seen) >= _LOOKED_AT:
            continue
        seen.add(id(owner))
        for key, value in space_of(owner).items():
            if key in _CHOOSE:
                todo += [(f"{name}{key}.", part) for part in (value if isinstance(value, (list, tuple)) else (value,))]
            elif (digest := _digest_of_row(value)) is not None:
                found[name + key] = digest
    return found


def plain_in(things: Iterable[Thing], made_anew: Callable[[str], bool]) -> Noted:
    """Return the plain values in these, except for times. `made_anew`: whether a name is set for each loop."""
    noted, now = Noted(), time.time()
    for name, value in things:
        if is_number(value) and abs(value - now) < _TIMES_S:
            continue  # ranks may have read the clock at the same moment
        data = packed(value)
        if data is None and made_anew(name):
            data = packed([*islice(_walk(value, is_number), _MOST)])
        if data is not None:
            noted[name] = data
    return noted


def generators_in(things: Iterable[Thing]) -> list[Any]:
    """Return the generators of random numbers in these."""
    found = {id(one): one for _, value in things for one in _walk(value, is_generator)}
    return [*found.values()][:_MOST]


def iterators_in(things: Iterable[Thing], known: Set[int]) -> list[str]:
    """Return the names of iterators in these, and in their lists and dicts, except for a generator that is running now,
    as it gives this step."""
    own = [(name, value) for name, value in things if id(value) not in known]
    held = [(name, key) for name, value in own for key, item in _keyed(value) if _is_iterator(item)]
    direct = {name for name, value in own if _is_iterator(value)}
    return sorted(direct | {f"{name}[{key!r}]" if is_scalar(key) else name for name, key in held})


def _keyed(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return the first items of a list, tuple or dict, each with its key."""
    if type(value) is dict:
        return islice([*value.items()], _LOOKED_AT)
    return islice(enumerate([*value]), _LOOKED_AT) if type(value) in (list, tuple) else ()


def _is_iterator(value: Any) -> bool:
    if not hasattr(type(value), "__next__") or isinstance(value, IOBase):
        return False
    return not (isinstance(value, GeneratorType) and value.gi_running)


def _digest_of_row(value: Any) -> int | None:
    """Return the digest of a tensor, an array, or a list of plain values. None: it is none of these."""
    if _is_leaf(value):
        return digest_of([value])
    if type(value) not in (list, tuple, range):
        return None
    few = [*value[:: 1 + len(value) // _LOOKED_AT]]
    return zlib.crc32(repr((len(value), few)).encode()) if all(map(is_scalar, few)) else None


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_array(value)


def _walk(value: Any, wanted: Callable[[Any], bool], known: Set[int] = frozenset()) -> Iterator[Any]:
    """Return the parts of this value, at any depth, that are wanted."""
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
        parts = [part for child in one.modules() for part in vars(child).values()]
        return chain(tensors, filter(is_generator, parts), filter(is_number, parts))
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
    except RuntimeError:  # another thread has changed it meanwhile
        return []


def _is_of_others(kind: type) -> bool:
    """Whether objects of this class belong to others: they keep what threads put there, or what is registered."""
    name = str(kind.__module__)
    root = name.partition(".")[0]
    return name.startswith(_OTHERS) or (root in sys.stdlib_module_names and root not in _BARE)


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # the cell is still empty
            continue


def _has_contents(tensor: torch.Tensor) -> bool:
    return not torch.nn.parameter.is_lazy(tensor) and not strange(tensor)
