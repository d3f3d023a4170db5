"""Resolves the names in a loop, and in the functions that it calls.

A loop calls functions of the script, methods of its own `self`, and methods of other objects. If these change their
parameters, they change what the loop passed to them. So each name is followed back to a place that begins in the loop's
frame or in a module. Objects are looked at as they are when the loop begins. Later objects are not found.
It does NOT know what statements do.
"""

from __future__ import annotations

import ast
import functools
import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from taskd.state.caches import draws
from taskd.state.nodes import all_in, kept_in_node
from taskd.state.places import ANY, NOTHING, Path, Place, attribute_of, kept_in
from taskd.state.sources import Node, node_of, own_names, passed_over, unwrapped

_FEW = 8
"""At most this many objects of a list are followed one by one."""
_ASKED_BY_LOADERS = (Dataset, Sampler)
_HOLDERS = (Namespace, SimpleNamespace, Mapping)
"""Objects that only hold what is set there."""
LOCAL = ".<locals>."
"""Part of the root of a place that only a called function sees."""


@kept_in_node
def place_of(node: ast.AST) -> Place | None:
    """Return the place that the source names here: a name, with its attributes and items."""
    path, at = list[tuple[bool, Any]](), node
    while not isinstance(at, ast.Name):
        if _asks_class(at):
            path.append((True, "__class__"))
            at = at.args[0]  # type: ignore[attr-defined]
            continue
        if isinstance(at, ast.Attribute):
            path.append((True, at.attr))
        elif isinstance(at, ast.Subscript):
            path.append((False, _key(at.slice)))
        else:
            return None
        at = at.value
    return Place(ast.unparse(node) if path else at.id, at.id, tuple(reversed(path)))


@kept_in_node
def named_in(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return the parts of this code that name a place."""
    return tuple(part for part in all_in(node) if place_of(part) is not None)


def _asks_class(node: ast.AST) -> bool:
    """Whether this is `type(self)`."""
    if not isinstance(node, ast.Call) or node.keywords or len(node.args) != 1:
        return False
    return isinstance(node.func, ast.Name) and node.func.id == "type"


def _key(node: ast.expr) -> Any:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        return -value if type(value) is int else ANY
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, (int, str)) else ANY


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one function."""

    name: str = ""
    """The function's name. Empty: it is the loop's function."""
    own: frozenset[str] = frozenset()
    """Its locals."""
    shared: frozenset[str] = frozenset()
    """Locals of the loop's function that it can see."""
    bound: Mapping[str, Place] = field(default_factory=dict)
    """Parameters that stand for a place, and the variable of a loop over a few objects."""
    module: str = ""
    """The module of its other names. Empty: not known."""
    hidden: frozenset[str] | None = None
    """Names that mean something else in the loop, if both have the same module. None: they have different modules."""
    code: CodeType | None = None

    @staticmethod
    def local(function: str) -> str:
        """Return the prefix of the roots of its locals."""
        return f"{function}{LOCAL}"

    def place(self, found: Place | None) -> Place | None:
        """Return this place as the loop sees it."""
        if found is not None and found.root in self.bound:
            return self.bound[found.root].under(found)
        if found is None or not self.name or found.root in self.shared:
            return found
        if found.root in self.own:
            return Place(found.text, f"{self.local(self.name)}{found.root}", found.path)
        if self.hidden is not None and found.root not in self.hidden:
            return found
        return Place(found.text, "", ((False, found.root), *found.path), self.module) if self.module else None


@dataclass(frozen=True, slots=True)
class Called:
    """A function that is called."""

    function: FunctionType
    node: Node
    owner: Place | None
    """The object that `self` is. None: it has no `self`."""
    place: Place | None = None
    """The place of the function itself."""

    @property
    def code(self) -> CodeType:
        """The code of the function."""
        return self.function.__code__

    def arguments(self, call: ast.Call, names: Names) -> list[tuple[str, ast.expr]]:
        """Return the arguments of this call, each with the name of its parameter."""
        code = self.code
        every = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        found, free = list[tuple[str, ast.expr]](), every[self.owner is not None : code.co_argcount]
        for name, value in zip(free, call.args, strict=False):
            if isinstance(value, ast.Starred):
                break
            found.append((name, value))
        return found + [(word.arg, word.value) for word in call.keywords if word.arg is not None and word.arg in every]


class Reach:
    """Resolves the names of one loop."""

    def __init__(self, code: CodeType, space: dict[str, Any], look: Callable[[Place], Any]) -> None:
        """`look` returns the value at a place."""
        self._space, self._look, self.code = space, look, code
        self._there: dict[Place, Any] = {}
        """What was found at the places that were looked at. No code of the script runs meanwhile."""
        self._behind: dict[tuple[Place, str], Place] = {}
        """Places behind properties, by the place and its text."""
        self.own = own_names(code) if code.co_name != "<module>" else frozenset[str]()
        """The locals of the loop's function."""
        self._cells = frozenset((*code.co_cellvars, *code.co_freevars))
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        self._from_outside = frozenset((*parameters, *code.co_freevars))

    def forget(self) -> None:
        """Keep nothing alive of what was found."""
        self._there.clear()

    def called(self, function: ast.expr, names: Names) -> Called | None:
        """Return the function of the script that this expression calls, or None."""
        owner: Place | None = None
        if isinstance(function, ast.Attribute) and _is_super(function.value) and names.code is not None:
            owner = names.place(Place("self", names.code.co_varnames[0])) if names.code.co_argcount else None
            value = _behind(NOTHING if owner is None else self._at(owner), names.code, function.attr)
        elif isinstance(function, ast.Attribute):
            owner = names.place(place_of(function.value))
            found = NOTHING if owner is None else self._at(owner)
            if type(found) is ModuleType:
                value, owner = vars(found).get(function.attr), None
            elif found is NOTHING:
                return None
            else:
                value = attribute_of(found, function.attr)
                owner = owner if value is NOTHING else None
                value = _of_class(type(found), function.attr) if value is NOTHING else value
        else:
            place = names.place(place_of(function))
            value = NOTHING if place is None else self._at(place)
            if issubclass(type(value), torch.nn.Module):
                value, owner = _of_class(type(value), "forward"), place
            elif type(value) is not FunctionType and unwrapped(_of_class(type(value), "__call__")) is not None:
                value, owner = _of_class(type(value), "__call__"), place
        if type(value) is staticmethod:
            value, owner = value.__func__, None
        elif type(value) is classmethod and isinstance(function, ast.Attribute):
            value, owner = value.__func__, self._class_of(names.place(place_of(function.value)))
        found_function = unwrapped(value)
        if found_function is None:
            return None
        node = node_of(found_function.__code__, found_function.__globals__)
        return Called(found_function, node, owner, names.place(place_of(function))) if isinstance(node, Node) else None

    def _class_of(self, place: Place | None) -> Place | None:
        """Return the place of a class, or of an object's class."""
        if place is None or issubclass(type(self._at(place)), type):
            return place
        return Place(f"{place.text}.__class__", place.root, (*place.path, (True, "__class__")), place.module)

    def behind_properties(self, place: Place) -> Place:
        """Return the place behind properties of the script that only return an attribute."""
        if (place, place.text) not in self._behind:
            self._behind[place, place.text] = self._behind_properties(place)
        return self._behind[place, place.text]

    def _behind_properties(self, place: Place) -> Place:
        for at, (is_attribute, name) in enumerate(place.path):
            if not is_attribute:
                continue
            owner = self._at(place.owner(at))
            found = _of_class(type(owner), name) if attribute_of(owner, name) is NOTHING else None
            if type(found) is property and (path := _given_by(found)):
                inner = Place(place.text, place.root, place.path[:at] + path + place.path[at + 1 :], place.module)
                return self.behind_properties(inner)
        return place

    def items(self, place: Place | None) -> list[Place]:
        """Return the items of a list, tuple or dict, if it has only a few objects of the script's own classes."""
        found: Any = NOTHING if place is None else self._at(place)
        if getattr(type(found), "__iter__", None) is torch.nn.ModuleList.__iter__:
            found = [*found._modules.values()]
        if place is None or type(found) not in (list, tuple, dict) or not 0 < len(found) <= _FEW:
            return []
        if not all(_is_own(type(one)) for one in (found.values() if type(found) is dict else found)):
            return []
        keys = [key for key in found if type(key) in (int, str)] if type(found) is dict else range(len(found))
        return [Place(f"{place.text}[{key!r}]", place.root, (*place.path, (False, key)), place.module) for key in keys]

    def is_module(self, place: Place | None) -> bool:
        """Whether this is a Python module."""
        return place is not None and type(self._at(place)) is ModuleType

    def is_of_a_library(self, place: Place) -> bool:
        """Whether it is an attribute of an object whose code is not followed: code of a package, or a data set that a
        loader asks."""
        if not place.path or not place.path[-1][0]:
            return False
        owner = type(self._at(place.owner(-1)))
        if issubclass(owner, _HOLDERS):
            return False
        file = getattr(sys.modules.get(owner.__module__), "__file__", None) or ""
        return issubclass(owner, _ASKED_BY_LOADERS) or passed_over(file, "")

    def is_container(self, place: Place) -> bool:
        """Whether it is a list, a dict or the like, or not known."""
        found = self._at(place)
        return found is NOTHING or issubclass(type(found), (list, dict, set, deque))

    def computed(self, place: Place) -> Iterator[tuple[Called, Place | None]]:
        """Return the properties of the script's classes that this place asks for. If one draws random numbers, and only
        at first, return also the place where it keeps them."""
        for at, (is_attribute, name) in enumerate(place.path):
            owner = place.owner(at)
            found = self._at(owner) if is_attribute else NOTHING
            getter = _of_class(type(found), name) if found is not NOTHING else None
            cached = isinstance(getter, functools.cached_property)
            function = unwrapped(getattr(getter, "func" if cached else "fget", None))
            node = None if function is None else node_of(function.__code__, function.__globals__)
            if function is not None and isinstance(node, Node) and function.__code__.co_argcount:
                kept = place.upto(at + 1) if cached and draws(function) else None
                if kept is not None or not cached:
                    yield Called(function, node, owner), kept
                    return

    def is_collective(self, function: ast.expr, names: Names) -> bool:
        """Whether it is a function of torch.distributed."""
        owner = function.value if isinstance(function, ast.Attribute) else None
        place = names.place(place_of(function if owner is None else owner))
        found = NOTHING if place is None else self._at(place)
        module = found.__name__ if type(found) is ModuleType else getattr(found, "__module__", "")
        return (type(found) is ModuleType) == (owner is not None) and str(module).startswith("torch.distributed")

    def is_seen_whole(self, place: Place) -> bool:
        """Whether only the loop's function can reach it."""
        return not place.module and (not self.own or place.root in self.own) and place.root not in self._from_outside

    def _at(self, place: Place) -> Any:
        if LOCAL in place.root:
            return NOTHING
        if place not in self._there:
            self._there[place] = self._look(place)
        return self._there[place]

    def inside(self, called: Called, bound: Mapping[str, Place]) -> Names:
        """Return the names inside a called function."""
        code, space = called.code, called.function.__globals__
        shared = self._cells.intersection(code.co_freevars) if space is self._space else frozenset[str]()
        own = {name: kept_in(called.place, name) for name in code.co_freevars if called.place and name not in shared}
        name = str(space.get("__name__", ""))
        module = name if name in sys.modules and vars(sys.modules[name]) is space else ""
        hidden = self.own if space is self._space else None
        return Names(code.co_name, own_names(code) - shared, shared, {**own, **bound}, module, hidden, code)


def _given_by(found: property) -> Path:
    """Return the path of the attribute that this property returns. Empty, if the property does anything else."""
    function = unwrapped(found.fget)
    node = node_of(function.__code__, function.__globals__) if function is not None else None
    if not isinstance(node, Node) or not isinstance(node.body[-1], ast.Return) or function is None:
        return ()
    before = [one for one in node.body[:-1] if not isinstance(one, ast.Expr) or not isinstance(one.value, ast.Constant)]
    given = place_of(node.body[-1].value) if node.body[-1].value is not None else None
    is_own = given is not None and given.root == function.__code__.co_varnames[0]
    return given.path if given is not None and is_own and not before else ()


def _is_own(kind: type) -> bool:
    """Whether it is a class of the script, that is, whether one of its functions is the script's."""
    return any(unwrapped(value) is not None for value in vars(kind).values())


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args


def _behind(owner: Any, code: CodeType, name: str) -> Any:
    """Return the attribute that `super()` finds in the method with this code."""
    kinds = type(owner).__mro__
    own = (
        at
        for at, kind in enumerate(kinds)
        for one in map(unwrapped, vars(kind).values())
        if one and one.__code__ is code
    )
    at = next(own, len(kinds))
    return next((vars(kind)[name] for kind in kinds[at + 1 :] if name in vars(kind)), None)


def _of_class(kind: type, name: str) -> Any:
    return next((vars(one)[name] for one in kind.__mro__ if name in vars(one)), None)
