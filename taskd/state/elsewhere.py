"""Finds counts of a script's loop that are not its own variables: in a dict, in an object, by `zip(count(), ...)`.

No repair puts them back. So the user is told, by the name that the source has for the count. If steps use it, all start
over. This module finds them in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Set
from types import FunctionType
from typing import Any, NamedTuple

from taskd.state.places import NUMBERS, Place, attribute_of
from taskd.state.reach import place_of

_COUNTING = frozenset({"enumerate", "count", "zip"})


class Method(NamedTuple):
    """A method that the loop calls, and the place of its object."""

    place: Place
    name: str

    def counted(self, root: Any, but: Set[Any], moves: Callable[[FunctionType], list[str]]) -> list[str]:
        """Return the numbers that it moves in its object. `but`: ids of objects, and spots, that are left out;
        `moves` returns what a function moves of its `self`."""
        found = self.place.held(root, but)
        kinds = () if found is None else type(found).__mro__
        function = next((vars(kind)[self.name] for kind in kinds if self.name in vars(kind)), None)
        if type(function) is not FunctionType:
            return []
        names = [name for name in moves(function) if (id(found), name) not in but]
        return [f"{self.place.text}.{name}" for name in names if type(attribute_of(found, name)) in NUMBERS]


def moved(statement: ast.stmt) -> Iterator[Place]:
    """Return the places that a statement moves from their own value."""
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
        if (place := place_of(target)) is not None and place.path:
            yield place


def asked(call: ast.Call) -> Method | None:
    """Return the method that this calls, if its object has a place."""
    place = place_of(call.func.value) if isinstance(call.func, ast.Attribute) else None
    return None if place is None else Method(place, call.func.attr)  # type: ignore[attr-defined]


def numbered(loop: ast.stmt) -> str:
    """Return the variable that enumerate() counts in the loop's header; empty: there is none."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Tuple) or "enumerate" not in _calls_at(loop):
        return ""
    first = loop.target.elts[0]
    return first.id if isinstance(first, ast.Name) else ""


def goes_along(loop: ast.stmt) -> tuple[set[str], bool]:
    """Return the variables that the loop's header sets beside the steps, and whether only enumerate() gives their
    values. The steps are what a `with` is entered with."""
    if not isinstance(loop, ast.For) or not (calls := _calls_at(loop)) & _COUNTING:
        return set(), True
    entered = {item.context_expr for part in ast.walk(loop) if isinstance(part, ast.With) for item in part.items}
    steps = {one.id for one in entered if isinstance(one, ast.Name)}
    names = {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)} - steps
    beside = [node for node in _around_steps(loop.iter) if isinstance(node, ast.Call) and _name(node) == "zip"]
    others = [part for node in beside for part in node.args if _name(part) != "repeat"]
    return names, "count" not in calls and len(others) <= len(beside)


def _calls_at(loop: ast.For) -> set[str]:
    return {_name(node) for node in _around_steps(loop.iter)} - {""}


def _around_steps(node: ast.AST) -> Iterator[ast.AST]:
    """Return the parts of a loop's header, but not those of `session.steps(list(zip(inputs, targets)))`."""
    yield node
    inner = (part for part in ast.walk(node) if part is not node)
    if _name(node) == "steps" and not any(_name(part) == "steps" for part in inner):
        return  # a function around it may have the same name: steps(enumerate(session.steps()))
    for part in ast.iter_child_nodes(node):
        yield from _around_steps(part)


def _name(node: ast.AST) -> str:
    """Return the name of the function that this calls."""
    function = node.func if isinstance(node, ast.Call) else None
    return str(getattr(function, "id", "") or getattr(function, "attr", ""))
