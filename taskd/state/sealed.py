"""Objects in which nobody can see: a database in memory, a running hash, an index, a stream of bytes in memory.

What such an object holds is not in attributes or items, but in memory of a library that is written in another language.
So no look can compare it, no repair puts it back, and a newcomer has it as its set-up has made it. If a loop both
changes such an object and uses what it answers (dealings.py), the weights depend on something that is lost with its
rank. Reading from a file or a connection changes it, too.

Failure modes: an object that only passes on what it gets (a file, a lock, a logger) is taken for one that keeps it, and
jobs start over for nothing; an object keeps something, and its class looks like one of those whose contents are seen.
Invariant: no code of the script, or of the object, is run here. Only its class and its own attributes are read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Set
from functools import partial
from io import BufferedRandom, BufferedReader, BytesIO, FileIO, StringIO, TextIOWrapper
from itertools import islice
from types import (
    BuiltinMethodType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import torch

from taskd.state.places import NOTHING, Path, Place, space_of
from taskd.state.script import Script
from taskd.state.sources import is_a_scripts_file, passed_over

_DESCRIPTORS = (ClassMethodDescriptorType, GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType)
"""What is in a class that was not written in Python."""
_EVERYWHERE = ("__dict__", "__weakref__")
_SEEN = frozenset(
    (
        *("collections", "types", "functools", "itertools", "operator", "enum", "abc", "typing", "zoneinfo"),
        *("datetime", "decimal", "re", "struct", "_struct", "sys", "weakref", "_weakref", "_weakrefset", "uuid"),
        *("random", "_random", "_json", "json", "_contextvars"),
    )
)
"""Modules whose classes keep nothing, or nothing that taskd does not see in another way."""
_OTHERS_SEE = frozenset(("torch", "numpy", "taskd"))
"""The same, and whatever their classes are made of."""
_PASS_ON = frozenset(("_io", "_thread", "_csv", "_socket", "_multiprocessing", "_queue", "select", "posix", "time"))
"""Modules whose objects pass on what they get, or guard something."""
_CONNECTIONS = (("socket", "socket"), ("multiprocessing.connection", "_ConnectionBase"))
_IN_MEMORY = (BytesIO, StringIO)
_READ = (BufferedReader, BufferedRandom, BytesIO, StringIO)
_READING = ("read", "recv", "next", "__next__")
"""Prefixes of methods that read."""
_ELSEWHERE = (("concurrent.futures._base", "Future"), ("_asyncio", "Future"), ("_asyncio", "Task"))
"""The outcome of something that runs by itself."""
_SAY_LITTLE = frozenset(("done", "running", "cancelled", "cancel", "add_done_callback", "fileno", "isatty"))
"""Methods that neither change what an object keeps nor tell it."""
_HEAP_TYPE = 1 << 9
"""The flag of a class that was made while the interpreter runs."""
_NO_OBJECTS = (ModuleType, FunctionType, type, torch.nn.Module)
"""What is in these is seen to by itself, or belongs to nobody."""
_LOOKED_AT = 64
"""At most this many attributes or items of one object are looked at."""
_last_name_of = type.__dict__["__name__"].__get__
_mro_of = type.__dict__["__mro__"].__get__
_module_of = type.__dict__["__module__"].__get__
_space_of_class = type.__dict__["__dict__"].__get__


class _At(NamedTuple):
    """What is at a place, or as near to it as there is anything."""

    name: str
    value: Any
    rest: Path
    """What is left of the place's path: a method, or an item under a computed key."""


def sealed_at(script: Script, known: Set[int], places: Iterable[Place], called: bool = True) -> dict[int, str]:
    """Return what nobody can see in at these places. By id, its name and its class. Known objects are left out.
    `called`: these are functions and methods that are called, or what they get; otherwise attributes and items."""
    found = dict[int, str]()
    for one in _there(script, known, places):
        inside = not _is_the_scripts(one.value) if called else not (one.rest and one.rest[0][0])
        if _is_called_there(one) if called else _is_kept_there(one):
            sealed = sealed_in(one.value, inside)
            found |= {part: f"{one.name} (a {kind})" for part, kind in sealed.items() if part not in known}
    return found


def streams_at(script: Script, known: Set[int], places: Iterable[Place]) -> set[str]:
    """Return the names and classes of files that are open for reading, and of connections, at these places. What has
    been read from them does not come again."""
    read = (at for at in _there(script, known, places) if not at.rest or str(at.rest[0][1]).startswith(_READING))
    found = ((at.name, one) for at in read for one in _called_with(at.value))
    return {f"{name} (a {_name_of(type(one))})" for name, one in found if is_stream(one)}


def sealed_in(value: Any, inside: bool = True) -> dict[int, str]:
    """Return what nobody can see in: this object, or what it is a method of. `inside`: or its attributes and items. By
    id, the name of the class."""
    parts = (part for one in _called_with(value) for part in (_parts(one) if inside else (one,)))
    return {id(one): _name_of(type(one)) for one in parts if _is_sealed(type(one))}


def is_stream(value: Any) -> bool:
    """Whether it is a file that is open for reading, or a connection."""
    if type(value) is TextIOWrapper:
        try:
            return is_stream(value.buffer)
        except ValueError:  # it is detached
            return False
    if type(value) is FileIO:
        return not value.closed and value.readable()
    names = ((_room_of(one, whole=True), _last_name_of(one)) for one in _mro_of(type(value)))
    return type(value) in _READ or any(name in _CONNECTIONS for name in names)


def _there(script: Script, known: Set[int], places: Iterable[Place]) -> Iterator[_At]:
    for place, root in script.rooted(sorted(places, key=lambda place: place.text)):
        value, rest = place.deepest(root, known)
        if value is not NOTHING and value is not None:
            yield _At(place.upto(len(place.path) - len(rest)).text, value, rest)


def _is_called_there(at: _At) -> bool:
    """Whether this object itself is called, or a method that is not followed: one of a library."""
    if not at.rest or not at.rest[0][0]:
        return True
    if at.rest[0][1] in _SAY_LITTLE:
        return False
    method = _of_class(at.value, at.rest[0][1])
    if type(method) is FunctionType:
        return passed_over(method.__code__.co_filename, method.__code__.co_name)
    return method is not None or not _is_the_scripts(at.value)


def _is_kept_there(at: _At) -> bool:
    """Whether this is an item of the object, or an attribute that only its class knows, and no method."""
    if not at.rest:
        return False
    is_attribute, name = at.rest[0]
    return not is_attribute or type(_of_class(at.value, name)) is GetSetDescriptorType


def _is_the_scripts(value: Any) -> bool:
    """Whether the script defines the class of this object."""
    return is_a_scripts_file(sys.modules.get(_room_of(type(value), whole=True)))


def _of_class(value: Any, name: str) -> Any:
    """Return what the object's class has under this name."""
    return next((space[name] for space in map(_space_of_class, _mro_of(type(value))) if name in space), None)


def _called_with(value: Any) -> Iterator[Any]:
    """Return this object. Of a method or a partial function: what it is called with."""
    if issubclass(type(value), (MethodType, BuiltinMethodType)):
        yield value.__self__
    elif issubclass(type(value), partial):
        for one in (value.func, *value.args, *value.keywords.values()):
            yield from _called_with(one)
    else:
        yield value


def _parts(value: Any) -> Iterator[Any]:
    """Return this object with its attributes or items."""
    yield value
    if not issubclass(type(value), _NO_OBJECTS) and not any(
        _room_of(one) in _OTHERS_SEE for one in _mro_of(type(value))
    ):
        items = value.values() if type(value) is dict else value if type(value) in (list, tuple) else ()
        yield from [*islice(items, _LOOKED_AT), *islice(space_of(value).values(), _LOOKED_AT)]


def _is_sealed(kind: type) -> bool:
    """Whether objects of this class have memory of their own, beside attributes and items."""
    for one in () if issubclass(kind, (tuple, *_NO_OBJECTS)) else _mro_of(kind):
        room = _room_of(one)
        if room in _OTHERS_SEE:
            return False
        if (_room_of(one, whole=True), _last_name_of(one)) in _ELSEWHERE:
            return True
        if _is_seen(one, room):
            continue
        parts = [part for name, part in _space_of_class(one).items() if name not in _EVERYWHERE]
        if any(type(part) in _DESCRIPTORS and part.__objclass__ is one for part in parts):
            return True
    return False


def _is_seen(kind: type, room: str) -> bool:
    if room == "builtins":
        return not kind.__flags__ & _HEAP_TYPE
    return room in _SEEN or (room in _PASS_ON and kind not in _IN_MEMORY)


def _room_of(kind: type, whole: bool = False) -> str:
    """Return the module of this class, or the first part of its name."""
    try:
        name = _module_of(kind)
    except AttributeError:
        return ""
    return "" if type(name) is not str else name if whole else name.partition(".")[0]


def _name_of(kind: type) -> str:
    return f"{_room_of(kind, whole=True)}.{_last_name_of(kind)}"
