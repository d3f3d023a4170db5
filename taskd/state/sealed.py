"""Objects in which nobody can see: a database in memory, a running hash, an index, a stream of bytes in memory.

What such an object holds is not in attributes or items, but in memory of a library that is written in another language.
So no look can compare it, no repair puts it back, and a newcomer has it as its set-up has made it. If a loop both
changes such an object and uses what it answers, the weights depend on something that is lost with its rank.

Failure modes: an object that only passes on what it gets (a file, a lock, a logger) is taken for one that keeps it, and
jobs start over for nothing; an object keeps something, and its class looks like one of those whose contents are seen.
Invariant: no code of the script, or of the object, is run here. Only its class and its own attributes are read.
"""

from __future__ import annotations

from io import BytesIO, StringIO
from itertools import islice
from types import (
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from taskd.state.places import space_of

_DESCRIPTORS = (ClassMethodDescriptorType, GetSetDescriptorType, MethodDescriptorType, WrapperDescriptorType)
"""What is in a class that was not written in Python."""
_EVERYWHERE = ("__dict__", "__weakref__")
_SEEN = frozenset(
    (
        *("builtins", "collections", "array", "types", "functools", "itertools", "operator", "enum", "abc", "typing"),
        *(
            "datetime",
            "decimal",
            "re",
            "struct",
            "_struct",
            "sys",
            "weakref",
            "_weakref",
            "_weakrefset",
            "random",
            "_random",
            "uuid",
        ),
        *("torch", "numpy", "taskd"),
    )
)
"""Modules whose classes keep nothing, or nothing that taskd does not see in another way."""
_PASS_ON = frozenset(("_io", "_thread", "_csv", "_socket", "_multiprocessing", "_queue", "select", "posix", "time"))
"""Modules whose objects pass on what they get, or guard something."""
_IN_MEMORY = (BytesIO, StringIO)
_NO_OBJECTS = (ModuleType, FunctionType, type)
_LOOKED_AT = 64
"""At most this many attributes of one object are looked at."""


def sealed_in(value: Any) -> str:
    """Return the name of the class in which nobody can see: of this object, or of one of its attributes. Empty: there
    is none."""
    if issubclass(type(value), _NO_OBJECTS):
        return ""
    parts = [value, *islice([*space_of(value).values()], _LOOKED_AT)]
    return next(filter(None, map(_sealed_class, parts)), "")


def _sealed_class(value: Any) -> str:
    kind = type(value)
    if issubclass(kind, type) or not any(map(_is_sealed, kind.__mro__)):
        return ""
    return f"{kind.__module__}.{kind.__qualname__}"


def _is_sealed(kind: type) -> bool:
    """Whether objects of this class have memory of their own, beside attributes and items."""
    room = str(kind.__module__).partition(".")[0]
    if room in _SEEN or (room in _PASS_ON and kind not in _IN_MEMORY):
        return False
    return any(type(part) in _DESCRIPTORS for name, part in vars(kind).items() if name not in _EVERYWHERE)
