"""Where something is that a script changes and that is no variable of its own: `totals["samples"]`, `meter.count`.

A place begins at a name of the loop's frame, or at a module, and goes on by attributes and items. What is there may be
looked at and set. Nothing of the script's own is run: objects are asked for their `__dict__` and slots alone. Objects
that a repair puts back anyway (`known`, by id, and modules) are left out, with all that they hold.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, field
from itertools import islice
from types import MemberDescriptorType, ModuleType
from typing import Any

import torch

from taskd.state.plain import filled
from taskd.state.sources import unwrapped

ANY = object()
"""A key that is reckoned."""
NOTHING = object()
_CELL = "variable "
"""In front of the name of a variable of a function, where a path has attributes."""
NUMBERS = frozenset((int, float))
"""Exactly these: True is a flag."""
_LOOKED_AT = 64
"""Items of a list or dict."""
Spot = tuple[int, Any]
"""An object, by id, and the name or key of what it has."""
Path = tuple[tuple[bool, Any], ...]
"""Each time whether it is an attribute, and its name or key."""


@dataclass(frozen=True, slots=True)
class Place:
    """`root.name[key]`."""

    text: str = field(compare=False)
    """As the source says it."""
    root: str
    path: Path = ()
    module: str = ""
    """If it is not empty: the root is all that this module has."""

    def under(self, other: Place) -> Place:
        """The other one, whose root is a name that stands for this place."""
        tail = other.text[len(re.match(r"\w*", other.text)[0]) :]  # type: ignore[index]
        return Place(self.text + tail, self.root, self.path + other.path, self.module)

    @property
    def base(self) -> Place:
        """The variable that it begins with."""
        length = 1 if self.module else 0
        return Place(re.match(r"\w*", self.text)[0], self.root, self.path[:length], self.module)  # type: ignore[index]

    def touches(self, other: Place) -> bool:
        """Whether one of them may be the other, or a part of it."""
        if (self.root, self.module) != (other.root, other.module):
            return False
        for one, another in zip(self.path, other.path, strict=False):
            if one[0] != another[0]:
                return True  # an attribute of what has items
            if one != another and ANY not in (one[1], another[1]):
                return False
        return True

    @property
    def is_exact(self) -> bool:
        """Whether it has no key that is reckoned."""
        return all(key is not ANY for _, key in self.path)

    def found(self, root: Any, known: Set[int] = frozenset()) -> Any:
        """What is there, or NOTHING."""
        return _follow(root, self.path, known)

    def held(self, root: Any, known: Set[int]) -> Any:
        """What is there, of an object that is not among the known ones; of any key, and of a part of a tensor, the
        whole. None: nothing."""
        found = root
        for is_attribute, name in self.path:
            if id(found) in known or found is NOTHING or _keeps_more(found):
                return None
            if not is_attribute and (name is ANY or not issubclass(type(found), (dict, list))):
                return found
            if issubclass(type(found), torch.Tensor):
                return found
            found = attribute_of(found, name) if is_attribute else _item(found, name)
        return None if found is NOTHING or id(found) in known else found

    def reached(self, root: Any) -> tuple[str, Any] | None:
        """What is there, and how it is called; of a method, of any key, and inside of a module, what has it. None:
        nothing."""
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

    def spots(self, root: Any) -> Iterator[int | str | Spot]:
        """Where it is, how it is called, and the list or dict that is there; of an item, the whole."""
        *path, (is_attribute, key) = self.path
        owner, found = _follow(root, path, frozenset()), self.found(root)
        if not is_attribute:
            yield id(owner)
        if found is not NOTHING and key is not ANY:
            cell = _cell(owner, key) if type(key) is str else None
            yield (id(owner), key) if cell is None else (id(cell), None)
            yield from listed_at(found)
            yield from (name for name, _ in filter(None, [self.reached(root)]))

    def put(self, root: Any, value: Any) -> None:
        """Let it be this, if there is a number."""
        *path, (is_attribute, _) = self.path
        in_dict = not is_attribute and issubclass(type(_follow(root, path, frozenset())), dict)
        if in_dict or type(self.found(root)) in NUMBERS:
            self.set(root, value)

    def set(self, root: Any, value: Any) -> None:
        """Let it be this, whatever is there. A list or dict stays the same one."""
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


def reached(rooted: Iterable[tuple[Place, Any]]) -> dict[str, Any]:
    """What is in these places, or has what is there, by its name."""
    return dict(filter(None, (place.reached(root) for place, root in rooted)))


def listed_at(found: Any) -> Iterator[int]:
    """Which list or dict it is; what its items are is known of the place, but not what an object does by itself."""
    if issubclass(type(found), (list, dict, set, deque)):
        yield id(found)


def kept_in(function: Place, name: str) -> Place:
    """A variable that a function has taken along from where it was made."""
    return Place(f"{function.text}.{name}", function.root, (*function.path, (True, _CELL + name)), function.module)


def _cell(function: Any, name: str) -> Any:
    """Where a function of the script's own keeps it; None: nowhere."""
    found = unwrapped(function) if name.startswith(_CELL) else None
    names = () if found is None else found.__code__.co_freevars
    return found.__closure__[names.index(name[len(_CELL) :])] if found and name[len(_CELL) :] in names else None  # type: ignore[index]


def attribute_of(found: Any, name: str) -> Any:
    """Of an object itself, not of its class; but for a number, which it begins with. Of a class, what it has."""
    if name == "__class__":
        return type(found)
    if (cell := _cell(found, name)) is not None:
        try:
            return cell.cell_contents
        except ValueError:  # nothing is in it yet
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
    """An object's `__dict__`; of one that answers for its own in another way, nothing."""
    try:
        space = object.__getattribute__(found, "__dict__")
    except (AttributeError, TypeError):
        return {}
    return space if type(space) is dict else {}


def _slot(found: Any, name: str) -> Any:
    slots = (vars(kind).get(name) for kind in type(found).__mro__)
    return next((slot for slot in slots if type(slot) is MemberDescriptorType), None)


def _first(found: Any, name: str) -> Any:
    """The number that an object of this class begins with under this name."""
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
    """A module's plain attributes are put back with it."""
    return id(found) in known or issubclass(type(found), torch.nn.Module)


def _keeps_more(found: Any) -> bool:
    """A module that says by itself what belongs to it beside its tensors."""
    kind = type(found)
    return issubclass(kind, torch.nn.Module) and kind.get_extra_state is not torch.nn.Module.get_extra_state


def _item(found: Any, key: Any) -> Any:
    """Of a list, tuple or dict; for any key, the first number there is."""
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
