"""Counts of a script's loop that are no variables of its own: in a dict, of another object, by `enumerate`.

No repair puts them back, so whoever has such a count is told so, by the name that the source has for it. Here are
these places, and what they hold. Nothing of the script's own is run: objects are asked for their `__dict__` alone.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from types import FunctionType
from typing import Any

import torch

_ANY = object()
"""A key that is reckoned."""
_NOTHING = object()
_LOOKED_AT = 64
"""Items of a list or dict."""
_COUNTING = frozenset({"enumerate", "count"})


@dataclass(frozen=True, slots=True)
class Place:
    """`root.name[key]`, or an object whose method is called."""

    text: str
    """As the source says it."""
    root: str
    path: tuple[tuple[bool, Any], ...]
    """Whether it is an attribute, and its name or key."""
    method: str = ""

    def held(self, root: Any, known: Set[int]) -> Any:
        """What is there, of an object that is not among the known ones; of any key, all of them."""
        path = self.path
        while path and path[-1][1] is _ANY:
            path = path[:-1]
        found = _follow(root, path, known)
        return None if found is _NOTHING or _is_known(found, known) else found

    def number(self, root: Any, known: Set[int]) -> bool:
        """Whether it holds a number, of an object that is not among the known ones."""
        return _is_number(_follow(root, self.path, known))

    def counted(self, root: Any, known: Set[int], moves: Callable[[FunctionType], list[str]]) -> list[str]:
        """What the method moves of its object. `moves`: the names of what a function moves of its `self`."""
        found = _follow(root, self.path, known)
        kinds = () if found is _NOTHING or _is_known(found, known) else type(found).__mro__
        function = next((vars(kind)[self.method] for kind in kinds if self.method in vars(kind)), None)
        if type(function) is not FunctionType:
            return []
        return [f"{self.text}.{name}" for name in moves(function) if _is_number(_attribute(found, name))]


Aliases = dict[str, list[Place]]
"""By the name of a variable: the places that it may be taken from."""


def aliases_of(statement: ast.stmt) -> Aliases:
    """`for name, tensor in averages.items()`, `for mine, its in zip(averages, others)`."""
    if not isinstance(statement, ast.For):
        return {}
    places = [*_sources(statement.iter)]
    return {node.id: places for node in ast.walk(statement.target) if isinstance(node, ast.Name)}


def _sources(node: ast.expr) -> Iterator[Place]:
    """What a value is made from."""
    if (place := _place(node)) is not None:
        yield place
    elif isinstance(node, ast.Call):
        for part in ([node.func.value] if isinstance(node.func, ast.Attribute) else []) + node.args:
            yield from _sources(part)
    else:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _sources(child)


def changed(statement: ast.stmt, calls: Sequence[ast.Call]) -> Iterator[Place]:
    """What a statement changes in place, if it is a tensor: by `x.add_(...)`, `averages[key] *= 0.9`."""
    for call in calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if name.endswith("_") and not name.endswith("__"):
            yield from _sources(_innermost(call.func))
            yield from (place for part in call.args[:1] for place in _sources(part) if name.startswith("_foreach"))
    yield from moved(statement)


def _innermost(function: ast.expr) -> ast.expr:
    """Of `x.mul_(0.9).add_(y)`: x."""
    while isinstance(function, ast.Attribute) and isinstance(function.value, ast.Call):
        function = function.value.func
    return function.value if isinstance(function, ast.Attribute) else function


def moved(statement: ast.stmt) -> Iterator[Place]:
    """Those that a statement moves from their own value."""
    if isinstance(statement, ast.AugAssign):
        targets: list[ast.expr] = [statement.target]
    elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        [target] = statement.targets
        text = ast.unparse(target) if isinstance(target, (ast.Attribute, ast.Subscript)) else ""
        parts = ast.walk(statement.value) if text else ()
        again = any(isinstance(part, type(target)) and ast.unparse(part) == text for part in parts)
        targets = [target] if again else []
    else:
        return
    for target in targets:
        if (place := _place(target)) is not None and place.path:
            yield place


def asked(call: ast.Call) -> Place | None:
    """An object whose method this is."""
    if not isinstance(call.func, ast.Attribute):
        return None
    place = _place(call.func.value)
    return place and Place(place.text, place.root, place.path, call.func.attr)


def numbered(loop: ast.stmt) -> str:
    """The variable to which a loop counts by itself, `for at, step in enumerate(...)`; empty: it does not."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Tuple):
        return ""
    first = loop.target.elts[0]
    calls = [node.func for node in ast.walk(loop.iter) if isinstance(node, ast.Call)]
    names = {getattr(call, "id", None) or getattr(call, "attr", None) for call in calls}
    return first.id if isinstance(first, ast.Name) and names & _COUNTING else ""


def _place(node: ast.expr) -> Place | None:
    path, text = list[tuple[bool, Any]](), ast.unparse(node)
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            path.append((True, node.attr))
        elif isinstance(node, ast.Subscript):
            path.append((False, node.slice.value if isinstance(node.slice, ast.Constant) else _ANY))
        else:
            return None
        node = node.value
    return Place(text, node.id, tuple(reversed(path)))


def _follow(found: Any, path: tuple[tuple[bool, Any], ...], known: Set[int]) -> Any:
    for is_attribute, name in path:
        if found is _NOTHING or _is_known(found, known):
            return _NOTHING
        found = _attribute(found, name) if is_attribute else _item(found, name)
    return found


def _is_known(found: Any, known: Set[int]) -> bool:
    """A module's plain attributes are put back with it."""
    return id(found) in known or issubclass(type(found), torch.nn.Module)


def _attribute(found: Any, name: str) -> Any:
    try:
        space = object.__getattribute__(found, "__dict__")
    except (AttributeError, TypeError):
        return _NOTHING
    return space.get(name, _NOTHING) if type(space) is dict else _NOTHING


def _item(found: Any, key: Any) -> Any:
    """Of a list or dict; for any key, the first number there is."""
    if issubclass(type(found), dict):
        if key is not _ANY:
            return dict.get(found, key, _NOTHING)
        values: Iterable[Any] = dict.values(found)
    elif issubclass(type(found), list):
        values = list.__iter__(found)
    else:
        return _NOTHING
    return next((value for value in islice(values, _LOOKED_AT) if _is_number(value)), _NOTHING)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)
