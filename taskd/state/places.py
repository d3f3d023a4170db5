"""Places of values that a script changes inside other objects: `totals["samples"]`, `meter.count`.

A place begins at a name of the loop's frame, or at a module, and continues with attributes and items. Its value can be
read and set. No code of the script is run: of an object, only its `__dict__` and slots are read. Objects that a repair
puts back anyway (`known`, by id, and torch modules) are left out, with all that they hold.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from itertools import islice
from types import MemberDescriptorType, ModuleType
from typing import Any

import torch

from taskd.state.plain import filled
from taskd.state.sources import is_the_scripts, unwrapped

ANY = object()
"""Stands for a key that the script computes."""
NOTHING = object()
_CELL = "variable "
"""Prefix of a name in a path: it is a closure variable of a function, not an attribute."""
NUMBERS = frozenset((int, float))
"""Exactly these: True is a flag."""
_LOOKED_AT = 64
"""At most this many items of a list or dict are looked at."""
Spot = tuple[int, Any]
"""The id of an object, and the name or key of something in it."""
Path = tuple[tuple[bool, Any], ...]
"""For each part: whether it is an attribute, and its name or key."""


@dataclass(frozen=True, slots=True)
class Place:
    """`root.name[key]`."""

    text: str = field(compare=False)
    """The place as the source writes it."""
    root: str
    path: Path = ()
    module: str = ""
    """If it is not empty, the place begins with the globals of this module."""

    def under(self, other: Place) -> Place:
        """Return the other place with this one in the position of its root, a name that stands for this place."""
        tail = other.text[len(re.match(r"\w*", other.text)[0]) :]  # type: ignore[index]
        return Place(self.text + tail, self.root, self.path + other.path, self.module)

    @property
    def base(self) -> Place:
        """The variable that the place begins with."""
        length = 1 if self.module else 0
        return Place(re.match(r"\w*", self.text)[0], self.root, self.path[:length], self.module)  # type: ignore[index]

    def owner(self, at: int) -> Place:
        """Return the place whose attribute or item number `at` is followed. Its text is this place's."""
        return Place(self.text, self.root, self.path[:at], self.module)

    def upto(self, length: int) -> Place:
        """Return the place where only so many attributes and items are followed."""
        path, begin = self.path[:length], len(self.base.path)
        parts = [f".{key}" if is_attribute else "[...]" if key is ANY else f"[{key!r}]" for is_attribute, key in path]
        return Place(self.base.text + "".join(parts[begin:]), self.root, path, self.module)

    def touches(self, other: Place) -> bool:
        """Whether one of both places may be the other, or a part of it."""
        if (self.root, self.module) != (other.root, other.module):
            return False
        for one, another in zip(self.path, other.path, strict=False):
            if one[0] != another[0]:
                return True  # an attribute in one place and an item in the other
            if one != another and ANY not in (one[1], another[1]):
                return False
        return True

    @property
    def is_exact(self) -> bool:
        """Whether it has no computed key."""
        return all(key is not ANY for _, key in self.path)

    def found(self, root: Any, known: Set[int] = frozenset()) -> Any:
        """Return the value at this place, or NOTHING."""
        return _follow(root, self.path, known)

    def held(self, root: Any, known: Set[int]) -> Any:
        """Return the value at this place. For a computed key, or a part of a tensor, return the whole. None: nothing is
        there, or it belongs to a known object."""
        found = root
        for is_attribute, name in self.path:
            if found is NOTHING or _keeps_more(found) or (id(found) in known and not _is_module(found)):
                return None  # of a module, only parameters, buffers and plain values are put back
            if not is_attribute and (name is ANY or not issubclass(type(found), (dict, list))):
                return found
            if issubclass(type(found), torch.Tensor):
                return found
            found = attribute_of(found, name) if is_attribute else _item(found, name)
        return None if found is NOTHING or id(found) in known else found

    def deepest(self, root: Any, known: Set[int]) -> tuple[Any, Path]:
        """Return the last object on the way that is there, and what is left of the path. NOTHING: it is in, or is, a
        known object."""
        found = root
        for at, (is_attribute, key) in enumerate(self.path):
            if id(found) in known:
                return NOTHING, ()
            part = attribute_of(found, key) if is_attribute else NOTHING if key is ANY else _item(found, key)
            if part is NOTHING:
                return found, self.path[at:]
            found = part
        return (NOTHING, ()) if id(found) in known else (found, ())

    def reached(self, root: Any) -> tuple[str, Any] | None:
        """Return the name and the value of this place, or None. For a method, for a computed key, and for something
        inside a torch module, return those of its owner."""
        found, name = root, "" if self.module else self.root
        for at, (is_attribute, key) in enumerate(self.path):
            if found is NOTHING or issubclass(type(found), (torch.Tensor, torch.nn.Module)):
                break
            part = attribute_of(found, key) if is_attribute else _item(found, key)
            if type(part) in (classmethod, staticmethod, property):
                break
            if part is NOTHING or (not is_attribute and key is ANY):
                found = NOTHING if at == 0 and (self.module or self.root == "self") else found
                break
            found = part
            name += f".{key.removeprefix(_CELL)}" if is_attribute else f"[{key!r}]" if name else str(key)
        return None if found is NOTHING else (name, found)

    def belongs(self, root: Any, known: Set[int]) -> bool:
        """Whether it is inside of one of the known objects."""
        found = root
        for is_attribute, key in self.path:
            if id(found) in known:
                return True
            found = attribute_of(found, key) if is_attribute else _item(found, key)
        return False

    def spots(self, root: Any) -> Iterator[int | str | Spot]:
        """Return its spot, its name, and the id of a list or dict there. For an item, return its container, too."""
        *path, (is_attribute, key) = self.path
        owner, found = _follow(root, path, frozenset()), self.found(root)
        if not is_attribute and not is_the_scripts(type(owner)):
            yield id(owner)
        if found is not NOTHING and key is not ANY:
            cell = _cell(owner, key) if type(key) is str else None
            yield (id(owner), key) if cell is None else (id(cell), None)
            yield from listed_at(found)
            yield from (name for name, _ in filter(None, [self.reached(root)]))

    def put(self, root: Any, value: Any) -> None:
        """Set it to this value, if it holds a number or None, or is an item of a dict."""
        *path, (is_attribute, _) = self.path
        in_dict = not is_attribute and issubclass(type(_follow(root, path, frozenset())), dict)
        if in_dict or may_be_replaced(self.found(root)):
            self.set(root, value)

    def set(self, root: Any, value: Any) -> None:
        """Set it to this value, whatever is there now. A list or dict stays the same object."""
        if not self.path or filled(self.found(root), value):
            return
        *path, (is_attribute, name) = self.path
        owner = _follow(root, path, frozenset())
        if is_attribute and (cell := _cell(owner, name)) is not None:
            cell.cell_contents = value
        elif is_attribute and issubclass(type(owner), type):
            type.__setattr__(owner, name, value)
        elif is_attribute:
            if name not in (space := space_of(owner)) and (slot := _slot(owner, name)) is not None:
                slot.__set__(owner, value)
            else:
                space[name] = value
        elif issubclass(type(owner), dict):
            dict.__setitem__(owner, name, value)
        elif issubclass(type(owner), list) and type(name) is int and -len(owner) <= name < len(owner):
            list.__setitem__(owner, name, value)


class Places:
    """Places that are looked up by other places."""

    def __init__(self, places: Iterable[Place] = (), whole: Set[Place] = frozenset()) -> None:
        """`whole`: objects that do not stand for all that is in them."""
        self._whole, self._by_root = whole, dict[tuple[str, str], set[Place]]()
        for place in places:
            self.add(place)

    def add(self, place: Place) -> None:
        self._by_root.setdefault((place.root, place.module), set()).add(place)

    def touched_by(self, place: Place) -> bool:
        """Whether one of them may be this place, or a part of it, or the other way round."""
        found = self._by_root.get((place.root, place.module), ())
        return any(place.touches(one) and (one == place or one not in self._whole) for one in found)

    def every(self) -> set[Place]:
        return set().union(*self._by_root.values())


def may_be_replaced(value: Any) -> bool:
    """Whether a number may take the place of this value. It may be None before the first step."""
    return value is None or type(value) in NUMBERS


def reached(rooted: Iterable[tuple[Place, Any]], known: Set[int] = frozenset()) -> dict[str, Any]:
    """Return the values of these places, or their owners, by name (see Place.reached), but nothing inside of known
    objects."""
    outside = ((place, root) for place, root in rooted if not (known and place.belongs(root, known)))
    return dict(filter(None, (place.reached(root) for place, root in outside)))


def listed_at(found: Any) -> Iterator[int]:
    """Return the id of a container: the source shows changes of its items. What other objects do, it does not show."""
    if issubclass(type(found), (list, dict, set, deque)):
        yield id(found)


def kept_in(function: Place, name: str) -> Place:
    """Return the place of a closure variable of this function."""
    return Place(f"{function.text}.{name}", function.root, (*function.path, (True, _CELL + name)), function.module)


def _cell(function: Any, name: str) -> Any:
    """Return the cell in which a function of the script keeps this closure variable. None: there is none."""
    found = unwrapped(function) if name.startswith(_CELL) else None
    names = () if found is None else found.__code__.co_freevars
    return found.__closure__[names.index(name[len(_CELL) :])] if found and name[len(_CELL) :] in names else None  # type: ignore[index]


def attribute_of(found: Any, name: str) -> Any:
    """Return an attribute of the object itself, or a number that its class starts it with. For a class: what it has."""
    if name == "__class__":
        return type(found)
    if (cell := _cell(found, name)) is not None:
        try:
            return cell.cell_contents
        except ValueError:  # the cell is still empty
            return NOTHING
    if issubclass(type(found), type):
        return next((space[name] for space in map(vars, type.mro(found)) if name in space), NOTHING)
    space = space_of(found)
    if name in space:
        return space[name]
    for part in ("_buffers", "_parameters", "_modules") if issubclass(type(found), torch.nn.Module) else ():
        if name in space.get(part, ()):
            return space[part][name]
    slot = _slot(found, name)
    try:
        return _first(found, name) if slot is None else slot.__get__(found)
    except AttributeError:
        return NOTHING


def space_of(found: Any) -> dict[str, Any]:
    """Return an object's `__dict__`. An object that has none, or provides its own kind, gives an empty dict."""
    try:
        owner = threading.local if issubclass(type(found), threading.local) else object
        space = owner.__getattribute__(found, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return space if type(space) is dict else {}


def _slot(found: Any, name: str) -> Any:
    slots = (vars(kind).get(name) for kind in type(found).__mro__)
    return next((slot for slot in slots if type(slot) is MemberDescriptorType), None)


def _first(found: Any, name: str) -> Any:
    """Return the number that the class gives its objects under this name."""
    spaces = map(vars, type(found).__mro__) if type(found) is not ModuleType else ()
    value = next((space[name] for space in spaces if name in space), NOTHING)
    return value if type(value) in NUMBERS else NOTHING


def _follow(found: Any, path: Iterable[tuple[bool, Any]], known: Set[int]) -> Any:
    for is_attribute, name in path:
        if found is NOTHING or _is_known(found, known):
            return NOTHING
        found = attribute_of(found, name) if is_attribute else _item(found, name)
    return found


def _is_known(found: Any, known: Set[int]) -> bool:
    """Whether a repair puts this object back anyway. Plain attributes of a torch module are put back with it."""
    return id(found) in known or _is_module(found)


def _is_module(found: Any) -> bool:
    return issubclass(type(found), torch.nn.Module)


def _keeps_more(found: Any) -> bool:
    """Whether this is a torch module that defines its extra state itself."""
    return _is_module(found) and type(found).get_extra_state is not torch.nn.Module.get_extra_state


def _item(found: Any, key: Any) -> Any:
    """Return an item of a list, tuple or dict. For a computed key, return the first number in it."""
    if issubclass(type(found), dict):
        if key is not ANY:
            return dict.get(found, key, NOTHING)
        values: Iterable[Any] = dict.values(found)
    elif issubclass(kind := type(found), (list, tuple)):
        base = list if issubclass(kind, list) else tuple
        if type(key) is int and -base.__len__(found) <= key < base.__len__(found):
            return base.__getitem__(found, key)
        values = base.__iter__(found)
    else:
        return NOTHING
    return next((value for value in islice(values, _LOOKED_AT) if type(value) in NUMBERS), NOTHING)
