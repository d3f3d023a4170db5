"""Snapshots: turns all that a manager knows into plain values and back. In a journal they replace the earlier steps.

An object becomes its class and the values of its fields. Two references to one object stay two references to one.
Only classes of the core are taken and made, so an object that is read can only hold values. What can go wrong, and what
follows:

- *A snapshot of another version of taskd*: its classes have other fields than ours. It is refused. The manager then
  begins like one that has lost its journal, and learns from the agents.
- *A field that only reports fill* (TRANSIENT) is left out: a replay of a journal does not have it either.

Invariant: `restored(taken(core))` reacts to every later event as `core` does. Not here: bytes and files (manager), and
when a snapshot is due (manager/memory.py).
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter, deque
from collections.abc import Callable, Set
from enum import Enum
from operator import attrgetter
from typing import Any

from taskd.core.hangs import Hangs
from taskd.core.job import Job
from taskd.core.manager import Manager
from taskd.core.pause.pauses import Pauses
from taskd.core.proof.proofs import Proofs
from taskd.core.rails.attention import Attention
from taskd.core.rails.sightings import Sightings
from taskd.core.rails.watch import RailWatch
from taskd.core.repair.devices import Devices
from taskd.core.rhythm import Rhythm
from taskd.core.stands import Stands

TRANSIENT: dict[type, dict[str, Callable[[], Any]]] = {
    Job: {"effects": list, "journal": list, "_parts": lambda: None},
    Hangs: {
        "_before": lambda: None,
        "_calm_since": int,
        "_judge_at": int,
        "_resumed": bool,
        "_rhythm": Rhythm,
        "_since": lambda: None,
        "_stopped": bool,
    },
    Stands: {"by_rank": dict, "told_at": dict, "outside": Counter},
    Devices: {"_last": dict},
    Pauses: {"_answers": dict, "_holds": dict},
    Proofs: {"_open": dict, "_ready": list, "parts": dict},
    Sightings: dict.fromkeys(("between", "peers", "_count"), dict),
    Attention: dict.fromkeys(("odd", "_now"), dict),
    RailWatch: {"_found": deque},
}
"""Fields that a snapshot leaves out, and their values before anything is reported."""
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_OBJECT, _ENUM, _LIST, _TUPLE, _SET, _FROZENSET, _DICT, _DEQUE, _BYTEARRAY = range(9)
"""The kinds of a list in a snapshot. Its first item is its kind."""


class Unfit(Exception):
    """The values are no snapshot of this version of taskd; the text says why. Never leaves taskd.manager."""


def taken(core: Manager) -> list[Any]:
    """Return all that this manager knows: the classes, the objects by number, and the number of the manager itself."""
    taker = _Taker()
    root = taker.number_of(core)
    return [taker.classes, taker.objects, root]


def restored(values: Any) -> Manager:
    """Return the manager that these values were taken from. Raises Unfit."""
    try:
        classes, objects, root = values
        maker = _Maker(classes, objects)
        core = maker.made[root]
    except (ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        raise Unfit(f"a snapshot that cannot be read ({type(error).__name__}: {error})") from None
    if not isinstance(core, Manager):
        raise Unfit("a snapshot of something else than a manager")
    return core


def _fields(one: object) -> list[str]:
    """Return the names of an object's fields. A dataclass may have slots."""
    if dataclasses.is_dataclass(one):
        return [field.name for field in dataclasses.fields(one)]
    return list(vars(one))


def _shape(cls: type) -> str:
    """Return a text that differs where two versions of a class have different fields. For a class that is no dataclass
    it consists of the names in its __init__."""
    code = getattr(cls.__init__, "__code__", None)  # type: ignore[misc]
    return "" if dataclasses.is_dataclass(cls) or code is None else " ".join(code.co_names)


class _Taker:
    """Turns objects into values."""

    def __init__(self) -> None:
        self.classes: list[list[Any]] = []
        self.objects: list[list[Any]] = []
        self._class_numbers: dict[type, int] = {}
        self._numbers: dict[int, int] = {}  # of objects, by id: all live as long as the manager
        self._enums: dict[int, list[Any]] = {}
        self._getters: dict[type, Callable[[Any], tuple[Any, ...]]] = {}

    def number_of(self, one: Any) -> int:
        """Return the number of an object. Its values are taken at the first call."""
        known = self._numbers.get(id(one))
        if known is not None:
            return known
        number = self._numbers[id(one)] = len(self.objects)
        cls = one.__class__
        getter = self._getters.get(cls) or self._getter(cls, one)
        row: list[Any] = [self._class_numbers[cls]]
        self.objects.append(row)
        left_out = TRANSIENT.get(cls)
        if left_out is None:
            row += [value if value.__class__ in _PLAIN else self._value(value) for value in getter(one)]
        else:
            row += [None if name in left_out else self._value(getattr(one, name)) for name in self._names(cls)]
        return number

    def _getter(self, cls: type, one: object) -> Callable[[Any], tuple[Any, ...]]:
        assert cls.__module__.startswith("taskd.core"), f"{cls} is no class of the core: no snapshot can hold it"
        names = _fields(one)
        self._class_number(cls, names)
        many = attrgetter(*names) if names else lambda _: ()
        getter = many if len(names) != 1 else lambda held: (many(held),)
        self._getters[cls] = getter
        return getter

    def _class_number(self, cls: type, names: list[str]) -> int:
        number = self._class_numbers.get(cls)
        if number is None:
            number = self._class_numbers[cls] = len(self.classes)
            self.classes.append([f"{cls.__module__}.{cls.__qualname__}", _shape(cls), names])
        return number

    def _names(self, cls: type) -> list[str]:
        names: list[str] = self.classes[self._class_numbers[cls]][2]
        return names

    def _value(self, one: Any) -> Any:
        cls = one.__class__
        if cls in _PLAIN:
            return one
        if cls is dict:
            return [_DICT, *(self._value(part) for pair in one.items() for part in pair)]
        if cls is list:
            return [_LIST, *map(self._value, one)]
        if cls is tuple:
            return [_TUPLE, *map(self._value, one)]
        if cls is set:
            return [_SET, *map(self._value, _in_order(one))]
        if cls is frozenset:
            return [_FROZENSET, *map(self._value, _in_order(one))]
        if cls is deque:
            return [_DEQUE, one.maxlen, *map(self._value, one)]
        if cls is bytearray:
            return [_BYTEARRAY, bytes(one)]
        if isinstance(one, Enum):
            known = self._enums.get(id(one))
            if known is None:
                known = self._enums[id(one)] = [_ENUM, self._class_number(cls, []), one.name]
            return known
        return [_OBJECT, self.number_of(one)]


class _Maker:
    """Turns values into objects. All are made before any is filled, because they refer to each other."""

    def __init__(self, classes: list[list[Any]], objects: list[list[Any]]) -> None:
        known = _classes()
        self._classes: list[type] = []
        for name, shape, names in classes:
            cls = known.get(name)
            if cls is None:
                raise Unfit(f"a snapshot with a {name}, which this taskd does not know")
            fields = names if issubclass(cls, Enum) or not dataclasses.is_dataclass(cls) else _fields(cls)
            if shape != _shape(cls) or names != fields:
                raise Unfit(f"a snapshot whose {name} holds other things than that of this taskd")
            self._classes.append(cls)
        self.made: list[Any] = [object.__new__(self._classes[row[0]]) for row in objects]
        for one, (number, *values) in zip(self.made, objects, strict=True):
            names, left_out = classes[number][2], TRANSIENT.get(one.__class__, {})
            for name, value in zip(names, values, strict=True):
                made = left_out[name]() if name in left_out else self._value(value)
                object.__setattr__(one, name, made)

    def _value(self, value: Any) -> Any:
        if value.__class__ is not list:
            return value
        kind, *parts = value
        if kind == _OBJECT:
            return self.made[parts[0]]
        if kind == _ENUM:
            return self._classes[parts[0]][parts[1]]  # type: ignore[index]
        if kind == _BYTEARRAY:
            return bytearray(parts[0])
        if kind == _DEQUE:
            return deque(map(self._value, parts[1:]), parts[0])
        items = map(self._value, parts)
        if kind == _DICT:
            return dict(zip(items, items, strict=True))
        return {_LIST: list, _TUPLE: tuple, _SET: set, _FROZENSET: frozenset}[kind](items)


def _in_order(items: Set[Any]) -> list[Any]:
    """Return the items in an order that is the same for equal sets, however they were filled."""
    try:
        return sorted(items)
    except TypeError:  # members of an enum
        return sorted(items, key=str)


def _classes() -> dict[str, type]:
    """Return every class of the core by its full name."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("taskd.core.")]
    return {
        f"{cls.__module__}.{cls.__qualname__}": cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type) and cls.__module__ == module.__name__
    }
