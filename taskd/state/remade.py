"""Objects that are made again from plain parts: members of an Enum, named tuples, Decimals, Fractions and dates.

A class of the script is named by its module and its name in it. The reader has the same script, so it finds its own
class there. No code of the script is run: a member is looked up, and a named tuple is made by `tuple` itself.

Failure modes: a class that cannot be found under its name (it is local to a function); an object that holds more than
its parts, or shares a part that changes. All these are only compared. This module does NOT know how parts become bytes
(plain.py).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, Flag
from fractions import Fraction
from types import ModuleType
from typing import Any
from weakref import ref

_space_of_class = type.__dict__["__dict__"].__get__
_whole_name_of = type.__dict__["__qualname__"].__get__
_MEMBER, _NAMED = "member", "named"
_BY_TEXT: tuple[tuple[type, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (Decimal, str, Decimal),
    (Fraction, str, Fraction),
    (date, date.isoformat, date.fromisoformat),
    (datetime, datetime.isoformat, datetime.fromisoformat),
)
"""Classes of the standard library: how to write an object as a text, and to read that."""
_CHANGE = (list, dict, set, deque, bytearray)
"""Objects that others may have, too, and see change."""
_homes: dict[int, tuple[ref[type], list[str]]] = {}
"""Where classes are found, by their ids."""


def parts_of(value: Any) -> list[Any] | None:
    """Return the parts of which the value can be made again. None: it cannot be."""
    kind = type(value)
    if kind is timedelta:
        return [kind.__name__, value.days, value.seconds, value.microseconds]
    for known, write, _ in _BY_TEXT:
        if kind is known:
            is_whole = kind is not datetime or (value.tzinfo is None and not value.fold)
            return [kind.__name__, write(value)] if is_whole else None
    if issubclass(kind, Enum) and not issubclass(kind, Flag):
        name = object.__getattribute__(value, "__dict__").get("_name_")
        is_member = _members_of(kind).get(name) is value
        return [_MEMBER, *home, name] if is_member and (home := _home_of(kind)) else None
    if is_named_tuple(kind) and not kind.__dictoffset__ and not _has_what_changes(value):
        return [_NAMED, *home, *tuple.__iter__(value)] if (home := _home_of(kind)) else None
    return None


def made_from(what: str, *parts: Any) -> Any:
    """Return the value that has these parts. Raises KeyError if its class is not there, or another one."""
    if what == timedelta.__name__:
        return timedelta(*parts)
    for known, _, read in _BY_TEXT:
        if what == known.__name__:
            return read(*parts)
    module, name, *rest = parts
    kind = _found(module, name)
    if what == _MEMBER and issubclass(kind, Enum):
        return _members_of(kind)[rest[0]]
    if what == _NAMED and is_named_tuple(kind) and len(getattr(kind, "_fields", ())) == len(rest):
        return tuple.__new__(kind, rest)
    raise KeyError(f"{module}.{name}")


def is_named_tuple(kind: type) -> bool:
    """Whether it is a class of named tuples."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _has_what_changes(parts: Any) -> bool:
    """Whether a part of this tuple can be changed in place. Whoever else has that part would have another one."""
    return any(
        issubclass(type(one), _CHANGE) or (issubclass(type(one), tuple) and _has_what_changes(one))
        for one in tuple.__iter__(parts)
    )


def _members_of(kind: type) -> dict[str, Any]:
    members: dict[str, Any] = _space_of_class(kind).get("_member_map_", {})
    return members


def _home_of(kind: type) -> list[str]:
    """Return the module of a class and its name there. Empty: it is not found there."""
    known, home = _homes.get(id(kind), (None, []))
    if known is None or known() is not kind or not home or _found(*home) is not kind:
        module, name = _space_of_class(kind).get("__module__"), _whole_name_of(kind)
        home = [module, name] if type(module) is str and _found(module, name) is kind else []
        _homes[id(kind)] = ref(kind), home
    return home


def _found(module: str, name: str) -> type:
    """Return the class with this name in this module, or the class of None if there is none."""
    place: Any = sys.modules.get(module)
    space = place.__dict__ if issubclass(type(place), ModuleType) else {}
    for part in name.split("."):
        place = space.get(part)
        if not issubclass(type(place), type):
            return type(None)
        space = _space_of_class(place)
    found: type = place
    return found
