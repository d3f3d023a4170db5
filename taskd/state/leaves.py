"""Collects the plain values that a script can reach, in any way, to see which of them changed between two moments.

The source shows most of what is set between two loops (around.py). It does not show `setattr`, an object that keeps
its attributes in another one, `State.get().weight`, or a cache. So the values themselves are looked at when a loop ends
and when the next one begins. A value that is different then was set between the loops. This module decides nothing.

The search starts at the given names. It follows whatever can hold a script's values: lists and dicts, objects and
classes of the script, functions with their defaults, closures, caches and the module's names that their code uses.
Failure modes: a clock that was read is taken for a result; the objects of installed packages are full of numbers that
no script computes with (a progress bar). So times are left out. Of an installed package, only objects that hold values
of others are searched. No code of the script is run.
"""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import os
import sys
import threading
import types
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from enum import Enum
from itertools import islice
from types import BuiltinMethodType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType, NoneType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from taskd.state.caches import Cached, drawn, globals_in, names_in, objects_in, remembered
from taskd.state.crowds import MOST as _LOOKED_AT
from taskd.state.crowds import Crowd, crowd_of
from taskd.state.marks import Which, code, holds_numbers, mark_of, mark_of_code, which_of
from taskd.state.places import Spot, space_of
from taskd.state.plain import Noted, can_be_given, is_by_id, is_number, is_scalar, mark, packed, unpacked
from taskd.state.rng import is_generator, kind_of
from taskd.state.sources import is_a_scripts_file, is_the_scripts, passed_over

Thing = tuple[str, Any]
"""A name in the script, and what is there."""
At = tuple[Any, Any]
"""The object in which a value is stored, and the name or key of the value there."""
_Part = tuple[str, Any, At | None]
"""A name and a value that were found inside something else, and where the value is stored."""
NONE: Set[Any] = frozenset()

_DEPTH = 16
_MOST = 4096
"""At most this many objects are looked at in all."""
_LONG = 1 << 16
"""Of a container with more items only some are looked at, unless it is a list of numbers."""
_HOLD = (types.SimpleNamespace, threading.local, Mapping, list, tuple, set, deque)
"""Types of other packages whose objects hold what a script has put there."""
_READ_WHOLE: tuple[Any, ...] = (
    type,
    MethodType,
    functools.partial,
    ModuleType,
    contextvars.ContextVar,
    Mapping,
    list,
    tuple,
    deque,
)
_FILLED = (list, dict, set, deque, bytearray)
"""Types of plain values that are given by filling them."""
_BEHIND = {classmethod: "__func__", staticmethod: "__func__", property: "fget", functools.cached_property: "func"}
GENERATOR = mark("generator ")
"""With this begins what stands for a generator of random numbers. Its kind follows."""
_FLAGS = frozenset(packed(value) for value in (True, False, None))
_OF_TORCH = "require_forward_param_sync"
"""DistributedDataParallel sets this attribute in each forward, so an evaluation changes it."""
_OF_LIBRARIES = (
    *("_TORCH", "TORCH", "PYTORCH", "TRITON", "CUDA", "CUBLAS", "CUDNN", "NCCL", "HCCL", "ASCEND", "GLOO"),
    *("OMP_", "KMP_", "MKL_", "DISABLE_CUPTI", "TEARDOWN_CUPTI", "TOKENIZERS_"),
)
"""How variables of the environment begin that libraries set while steps run. Some hold addresses of one process."""
HOOK = "hook "
"""With this begin the names of hooks, and of what only they use."""
WHICH = " (which one)"
"""With this end the names of what says which code is somewhere."""
_OF_STEPS = "taskd.worker.step"
"""The module of the steps. A variable that has none yet at the first look, and a step later, has not changed."""
GONE = b""
"""Stands for a value that is not there any more."""


def leaves_of(things: Iterable[Thing], known: Set[int], but: Set[int | str | Spot] = NONE) -> Noted:
    """Return the plain values in these things, by name. `known`: ids of objects that are restored in another way.
    `but`: what to leave out: ids of objects, spots, and names of things."""
    return {one.name: one.data for one in met_in(things, known, but) if one.data is not None}


class Leaf(NamedTuple):
    """A plain value."""

    data: bytes
    value: Any
    at: At | None
    """Where it is stored. None: it is one of the things themselves."""


def stored_leaves(
    things: Iterable[Thing], known: Set[int], but: Set[int | str | Spot] = NONE, shown: Set[int | str | Spot] = NONE
) -> dict[str, Leaf]:
    """Return the same values and all that has a mark, each with the place where it is stored. For `shown` see met_in.
    Plain values in caches are left out."""
    met = met_in(things, known, but, shown)
    return {one.name: Leaf(one.data, one.value, one.at) for one in met if one.data is not None}


class Met(NamedTuple):
    """Something that the search has met."""

    name: str
    part: str
    """Its name as a part of its owner. Two parts of different owners may have the same."""
    value: Any
    at: At | None
    data: bytes | None
    """The plain value. None: it is not plain, and has been searched."""
    owner: int
    """The id of the object whose part it is. Zero: it is one of the things."""


def met_in(
    things: Iterable[Thing],
    known: Set[int],
    but: Set[int | str | Spot] = NONE,
    shown: Set[int | str | Spot] | None = None,
) -> Iterator[Met]:
    """Search these things, the nearest parts first. `shown`: it is for a look, so what has a mark (marks.py) counts as
    plain, unless the source shows where it is set: others judge that. None: it is not for a look, so all counts that
    the script's caches remember."""
    taken, seen = dict[str, tuple[Spot | None, bytes]](), {one for one in but if type(one) is int}
    todo = deque[tuple[str, Any, At | None, int, int]](
        (name, value, None, 0, _DEPTH) for name, value in things if name not in but
    )
    while todo and len(seen) < _MOST:
        name, value, at, owner, depth = todo.popleft()
        if shown is not None and (which := _which_to_see(name, value, at, shown)) is not None:
            said, found = name + WHICH, mark_of_code(which)
            yield Met(_own_name(said, at, found, taken), said, which, at, found, owner)
        if not is_scalar(value) and id(value) in seen:
            continue
        data = plain(value, known)
        if data is None and shown is not None and id(value) not in known:
            data = None if holds_numbers(value) and _is_seen_to(name, value, at, shown) else mark_of(value)
        if data is not None:  # two names may have the same value, and get others later
            if issubclass(type(value), _FILLED):
                seen.add(id(value))  # whoever has it finds what is put into it
            yield Met(_own_name(name, at, data, taken), name, value, at, data, owner)
        elif depth:
            seen.add(id(value))
            yield Met(name, name, value, at, None, owner)
            cached = shown is not None and issubclass(type(value), Cached)
            parts = _of_cache(name, value) if cached else parts_of(name, value, known, but)
            todo += [
                (part, item, place, id(value), depth - 1)
                for part, item, place in parts
                if shown is None or type(item) is not Which
            ]


def _own_name(name: str, at: At | None, data: bytes, taken: dict[str, tuple[Spot | None, bytes]]) -> str:
    """Return a name that no other value has. `taken`: the names so far."""
    place = None if at is None else (id(at[0]), at[1])
    while _is_another(taken.setdefault(name, (place, data)), (place, data)):
        name += ", too"
    return name


def _which_to_see(name: str, value: Any, at: At | None, shown: Set[int | str | Spot]) -> Which | None:
    """Return which code this is, if a step may take another. Of variables that is seen only if the source shows it."""
    if (which := which_of(value)) is None:
        return None
    if at is not None and issubclass(type(at[0]), type):
        return code(f"of a class {which.text}")
    is_a_variable = at is None or at[1] == name
    return None if is_a_variable and {name, None if at is None else (id(at[0]), at[1])}.isdisjoint(shown) else which


def _is_seen_to(name: str, value: Any, at: At | None, shown: Set[int | str | Spot]) -> bool:
    """Whether others see to it. The source may show where it is set. A loader passes its batches by itself. And what a
    module keeps is mostly what its last forward has made."""
    if at is None:
        return id(value) in shown or name in shown
    owner, kind = id(at[0]), type(at[0])
    if issubclass(kind, torch.nn.Module) or (not issubclass(kind, _HOLD) and _iterates(kind)):
        return True
    if name.startswith(HOOK):  # what the loop sets there, a hook may use before it is set anew
        return False
    return not {id(value), owner, (owner, at[1])}.isdisjoint(shown)


def _iterates(kind: type) -> bool:
    return any("__iter__" in vars(base) for base in kind.__mro__)


def _is_another(one: tuple[Spot | None, bytes], other: tuple[Spot | None, bytes]) -> bool:
    """Whether these are two variables of the same name. Where one of them is may be unknown."""
    return one[1] != other[1] if None in (one[0], other[0]) else one[0] != other[0]


def parts_of(name: str, one: Any, known: Set[int], but: Set[int | str | Spot]) -> Iterator[_Part]:
    """Return what is stored in an object of this name."""
    for part in _of_class(one) if id(one) in known else _parts(name, one):
        if (place := part[2]) is None or (id(place[0]), place[1]) not in but:
            yield part


def plain(value: Any, known: Set[int] = NONE) -> bytes | None:
    """Return a plain value, or a digest of it. None: it is not plain. A generator of random numbers counts as one whose
    contents do not matter: where it stands is put back, but no newcomer gets one. A dict whose keys are the ids of
    `known` objects is only compared: in a newcomer these objects have other ids."""
    data = packed(_shortened(value))
    if data is None and _holds_groups(value):  # a newcomer makes those that it lacks
        data = packed(type(value)())
    if data is not None and is_by_id(value, known):
        return mark(f"by id {zlib.crc32(data)}")
    return GENERATOR + kind_of(value).encode() if data is None and is_generator(value) else data


def code_of(name: str, value: Any) -> Iterator[Thing]:
    """Return this value if it is a function, class or cached function, else its class if the script defines it."""
    if issubclass(type(value), (FunctionType, type, Cached)):
        yield name, value
    else:
        yield from ((part, kind) for part, kind, _ in _of_class(value))


def moved_between(ended: Noted, now: Noted, clocks: Iterable[tuple[float, float]]) -> Noted:
    """Return the values that have changed since the previous loop ended, except for times read meanwhile. `clocks`:
    what each clock said then and says now."""
    spans = [*clocks]
    moved = {name: data for name, data in now.items() if ended.get(name) != data and not _stays(name, data, ended, now)}
    gone = dict.fromkeys(ended.keys() - now.keys(), GONE)
    return gone | {name: data for name, data in moved.items() if not _is_time(data, spans)}


def _stays(name: str, data: bytes, ended: Noted, now: Noted) -> bool:
    """Whether a name is only new because a function is, which uses a variable that has stayed the same."""
    variable = name.rpartition(".")[2]
    return name not in ended and ended.get(variable) == now.get(variable) == data


def moved_meanwhile(begun: Noted, now: Noted, clocks: Iterable[tuple[float, float]]) -> list[str]:
    """Return the names of values that were there and have changed, except for times and flags."""
    spans = [*clocks]
    moved = [name for name, data in now.items() if begun.get(name, data) != data]
    return sorted(name for name in moved if now[name] not in _FLAGS and not _is_time(now[name], spans))


def _shortened(value: Any) -> Any:
    """Return some items and the length of a long dict, or of a long list whose items are not scalars."""
    kind = type(value)
    if kind is dict and len(value) > _LONG:
        return [len(value), *islice(value.items(), _LOOKED_AT), *islice(reversed(value.items()), _LOOKED_AT)]
    if kind in (list, tuple) and len(value) > _LONG and not is_scalar(value[0]):
        return [len(value), *value[:: 1 + len(value) // _LOOKED_AT], value[-1]]
    return value


def _holds_groups(value: Any) -> bool:
    """Whether it is a dict or list of process groups alone."""
    if type(value) not in (dict, list) or not value:
        return False
    items: Iterable[Any] = value.values() if type(value) is dict else value
    return all(isinstance(item, dist.ProcessGroup) for item in items)


def _is_time(data: bytes, clocks: list[tuple[float, float]]) -> bool:
    value: Any = unpacked(data) if can_be_given(data) else None
    return is_number(value) and any(before <= value <= now for before, now in clocks)


def _parts(name: str, one: Any) -> Iterator[_Part]:
    kind = type(one)
    if issubclass(kind, FunctionType):
        yield from _of_function(name, one)
    elif issubclass(kind, MethodType):
        yield from ((name, one.__self__, None), (name, one.__func__, None))
    elif kind is contextvars.ContextVar:
        yield name, one.get(None), (one, "value")
    elif kind in _BEHIND:
        yield name, getattr(one, _BEHIND[kind]), None
    elif kind is BuiltinMethodType:
        if not isinstance(one.__self__, (type, ModuleType, NoneType)):
            yield name, one.__self__, None
    elif kind is GeneratorType:
        yield from _of_generator(name, one)
    elif issubclass(kind, functools.partial):
        yield from ((name, held, None) for held in (one.keywords, one.args, one.func))
    elif issubclass(kind, Cached):
        yield from _of_cache(name, one)
        yield from ((f"what {name} remembers[{at}]", item, None) for at, item in enumerate(remembered(one)))
    elif issubclass(kind, type):
        yield from _of_a_class(name, one)
    elif one is os.environ:
        own = [pair for pair in [*os.environ.items()] if not pair[0].startswith(_OF_LIBRARIES)]
        yield from ((f"{name}[{key!r}]", value, (one, key)) for key, value in own)
    elif issubclass(kind, torch.nn.Module):
        yield from _of_module(name, one)
    elif kind.__name__ == "SeedSequence" and hasattr(kind, "n_children_spawned"):
        yield f"{name}.n_children_spawned", one.n_children_spawned, (one, "n_children_spawned")
    elif kind.__module__ == "multiprocessing.sharedctypes" and hasattr(kind, "value"):
        yield f"{name}.value", one.value, (one, "value")
    elif not issubclass(kind, ModuleType):
        yield from _of_object(name, one)


def _of_cache(name: str, one: Any) -> Iterator[_Part]:
    yield name, one.__wrapped__, None
    yield from ((f"{name}{given}", item, (held, None)) for given, item, held in objects_in(one))
    yield from ((f"what {name} has drawn", count, None) for count in drawn(one))


def _of_object(name: str, one: Any) -> Iterator[_Part]:
    kind = type(one)
    if issubclass(kind, dict):
        items = islice([*dict.items(one)], _LOOKED_AT)
        named = ((_shown_key(key), key, item) for key, item in items)
        yield from ((f"{name}[{shown}]", item, (one, key)) for shown, key, item in named if shown)
    elif issubclass(kind, (list, tuple, deque)):
        rows = [*islice([*_iterated(one)], _LOOKED_AT)]
        yield from ((f"{name}[{at}]", item, (one, at)) for at, item in enumerate(rows))
        yield from _which(name, ((f"[{at}]", item) for at, item in enumerate(rows)))
    yield from _crowd(name, one)
    if _has_attributes(kind):
        space = [*space_of(one).items()]  # another thread may add to it
        yield from ((f"{name}.{attribute}", item, (one, attribute)) for attribute, item in space)
        yield from _which(name, ((f".{attribute}", item) for attribute, item in space))
        yield from _slots(name, one)
    yield from _of_class(one)


def _crowd(name: str, one: Any) -> Iterator[_Part]:
    if (crowd := crowd_of(one)) is not None:
        yield f"{name} (all)", crowd, None


def _which(name: str, items: Iterable[tuple[str, Any]]) -> Iterator[_Part]:
    """Return which functions these are. None can be set by what is returned."""
    for where, item in items:
        if type(item) in (FunctionType, MethodType) and (which := which_of(item)) is not None:
            yield f"{name}{where}{WHICH}", which, (item, None)


def _shown_key(key: Any) -> str:
    """Return a key as text. Empty: nothing says which key of another process is the same."""
    return repr(key) if is_scalar(key) else key.__qualname__ if issubclass(type(key), type) else ""


def _has_attributes(kind: type) -> bool:
    """Whether the attributes of such objects are searched."""
    return is_the_scripts(kind) or issubclass(kind, _HOLD) or dataclasses.is_dataclass(kind) or _is_bare(kind)


def _of_module(name: str, one: torch.nn.Module) -> Iterator[_Part]:
    space = space_of(one)
    for attribute, item in (*space.items(), *space.get("_modules", {}).items()):
        if not attribute.startswith("_") and attribute != _OF_TORCH:
            yield f"{name}.{attribute}", item, (one, attribute)
    yield from _of_class(one)


def _iterated(one: Any) -> Iterator[Any]:
    base: Any = next(base for base in (list, tuple, deque) if isinstance(one, base))
    return base.__iter__(one)


def _slots(name: str, one: Any) -> Iterator[_Part]:
    for attribute, slot in _slots_of(type(one)):
        try:
            yield f"{name}.{attribute}", slot.__get__(one), (one, attribute)
        except AttributeError:  # the slot is still empty
            continue


def _slots_of(kind: type) -> Iterator[tuple[str, types.MemberDescriptorType]]:
    for one in filter(is_the_scripts, kind.__mro__):
        for attribute, slot in vars(one).items():
            if type(slot) is types.MemberDescriptorType:
                yield attribute, slot


def _of_class(one: Any) -> Iterator[_Part]:
    """Return the class of an object, if the script defines it."""
    kind = type(one)
    if is_the_scripts(kind):
        yield kind.__qualname__, kind, None


def _of_generator(name: str, one: Any) -> Iterator[_Part]:
    """Return the numbers, texts, flags and tensors of a generator of the script that stands still. Nobody can set
    them."""
    if (
        one.gi_frame is not None
        and not one.gi_running
        and not passed_over(one.gi_code.co_filename, one.gi_code.co_name)
    ):
        held = one.gi_frame.f_locals
        own = [(variable, item) for variable, item in held.items() if is_scalar(item) or holds_numbers(item)]
        if sys.version_info < (3, 13):
            held.clear()  # a copy that the frame would keep
        yield from ((f"{name}.{variable}", item, (one, variable)) for variable, item in own)


def _of_a_class(name: str, one: type) -> Iterator[_Part]:
    yield from _of_class(one)
    if issubclass(one, Enum) and is_the_scripts(one):
        for member in one.__members__.values():
            own = ((attribute, item) for attribute, item in space_of(member).items() if not attribute.startswith("_"))
            yield from ((f"{name}.{member.name}.{attribute}", item, (member, attribute)) for attribute, item in own)
    for kind in one.__mro__:
        if is_the_scripts(kind):
            named = name if kind is one else kind.__qualname__
            for attribute, item in [*vars(kind).items()]:
                if not attribute.startswith("__") or type(item) is FunctionType:
                    yield f"{named}.{attribute}", item, (kind, attribute)


def _of_function(name: str, one: FunctionType) -> Iterator[_Part]:
    for attribute, item in [*vars(one).items()]:
        yield name if attribute == "__wrapped__" else f"{name}.{attribute}", item, (one, attribute)
    cells = zip(one.__code__.co_freevars, one.__closure__ or (), strict=False)
    for free, cell in cells:
        try:
            yield f"{name}.{free}", cell.cell_contents, (cell, None)
        except ValueError:  # the cell is still empty
            continue
    if passed_over(one.__code__.co_filename, one.__code__.co_name):
        return
    yield from ((f"default {at} of {name}", value, None) for at, value in enumerate(one.__defaults__ or (), 1))
    yield from ((f"default {key} of {name}", value, None) for key, value in (one.__kwdefaults__ or {}).items())
    yield from _named_in(one.__code__, one.__globals__)


def _named_in(code: CodeType, space: dict[str, Any]) -> Iterator[_Part]:
    """Return the module's values that this code names. Of the script's other modules: what the code may read there."""
    names = names_in(code)
    if _reads_environment(names):
        yield "os.environ", os.environ, None
    for name in globals_in(code):
        value = _global(name, space)
        if not issubclass(type(value), ModuleType):
            yield name, value, (space, name)
        elif is_a_scripts_file(value):
            other = vars(value)
            there = [attribute for attribute in names if attribute in other]
            yield from ((f"{name}.{attribute}", other[attribute], (other, attribute)) for attribute in there)


def _reads_environment(names: tuple[str, ...]) -> bool:
    return "environ" in names or "getenv" in names


def _global(name: str, space: dict[str, Any]) -> Any:
    """Return the module's value of this name, or the script's module that the code itself imports."""
    found = space[name] if name in space else sys.modules.get(name)
    return None if type(found).__module__ == _OF_STEPS else found


def may_hold(one: Any) -> bool:
    """Whether values may be stored in this object, now or later. Functions hold only what they name."""
    kind = type(one)
    return (
        issubclass(kind, torch.nn.Module)
        or (not issubclass(kind, type) and _has_attributes(kind))
        or is_the_scripts(one if issubclass(kind, type) else kind)
    )


def reader_of(one: Any) -> Callable[[Any], list[Any]]:
    """Return a function that reads quickly all values in such an object on which its parts depend, and its class."""
    kind = type(one)
    if issubclass(kind, FunctionType):
        if passed_over(one.__code__.co_filename, one.__code__.co_name):
            return functools.partial(_read_function, (), [])
        names, own = names_in(one.__code__), globals_in(one.__code__)
        files = [vars(found) for name in own if is_a_scripts_file(found := _global(name, one.__globals__))]
        others = [(space, name) for space in files for name in names]
        others += [(vars(os), "environ")] if _reads_environment(names) else []
        return functools.partial(_read_function, own, others)
    if issubclass(kind, torch.nn.Module):
        return _read_module
    if issubclass(kind, type) and not issubclass(one, Enum):
        return functools.partial(_read_a_class, [vars(base) for base in one.__mro__ if is_the_scripts(base)])
    if issubclass(kind, Cached):
        return _read_cached
    if kind is dict and len(one) <= _LOOKED_AT:
        return _read_dict
    if not issubclass(kind, _READ_WHOLE) and _has_attributes(kind) and not any(_slots_of(kind)):
        return _read_attributes
    return _read_parts


def _read_function(names: tuple[str, ...], others: list[tuple[dict[str, Any], str]], one: FunctionType) -> list[Any]:
    read = [one.__code__, *vars(one).values(), *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
    read += map(one.__globals__.get, names)
    read += [space.get(name) for space, name in others]
    for cell in one.__closure__ or ():
        try:
            read.append(cell.cell_contents)
        except ValueError:  # the cell is still empty
            read.append(GONE)
    return read


def _read_module(one: torch.nn.Module) -> list[Any]:
    space = space_of(one)
    return [type(one), *space, *space.values(), *space.get("_modules", {}).values()]


def _read_a_class(spaces: list[Mapping[str, Any]], one: type) -> list[Any]:
    return [type(one), type(type(one)), *(item for space in spaces for item in (*space, *space.values()))]


def _read_cached(one: Any) -> list[Any]:
    return [type(one), one.__wrapped__, *drawn(one), *(item for _, item, _ in objects_in(one))]


def _read_dict(one: dict[Any, Any]) -> list[Any]:
    return [type(one), *one, *one.values()]


def _read_attributes(one: Any) -> list[Any]:
    space = space_of(one)
    return [type(one), *space, *space.values()]


def _read_parts(one: Any) -> list[Any]:
    return [type(one), *(item for _, item, _ in _parts("", one) if type(item) not in (Which, Crowd))]


def _is_bare(kind: type) -> bool:
    """Whether it is a class of the standard library whose objects only hold what a script has put there."""
    return kind.__module__ == "argparse"
