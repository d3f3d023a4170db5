"""Counts of a script's loop that are no variables of its own: in a dict, of another object, by `enumerate`.

No repair puts them back, so whoever has such a count is told so, by the name that the source has for it. Here is how
they are found in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Set
from types import FunctionType
from typing import Any, NamedTuple

from taskd.state.places import NUMBERS, Place, attribute_of
from taskd.state.reach import place_of

_COUNTING = frozenset({"enumerate", "count"})


class Method(NamedTuple):
    """Of an object that is there."""

    place: Place
    name: str

    def counted(self, root: Any, known: Set[int], moves: Callable[[FunctionType], list[str]]) -> list[str]:
        """What it moves of its object. `moves`: the names of what a function moves of its `self`."""
        found = self.place.held(root, known)
        kinds = () if found is None else type(found).__mro__
        function = next((vars(kind)[self.name] for kind in kinds if self.name in vars(kind)), None)
        if type(function) is not FunctionType:
            return []
        return [f"{self.place.text}.{name}" for name in moves(function) if type(attribute_of(found, name)) in NUMBERS]


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
        if (place := place_of(target)) is not None and place.path:
            yield place


def asked(call: ast.Call) -> Method | None:
    """An object whose method this is."""
    place = place_of(call.func.value) if isinstance(call.func, ast.Attribute) else None
    return None if place is None else Method(place, call.func.attr)  # type: ignore[attr-defined]


def numbered(loop: ast.stmt) -> str:
    """The variable to which a loop counts by itself, `for at, step in enumerate(...)`; empty: it does not."""
    if not isinstance(loop, ast.For) or not isinstance(loop.target, ast.Tuple):
        return ""
    first = loop.target.elts[0]
    calls = [node.func for node in ast.walk(loop.iter) if isinstance(node, ast.Call)]
    names = {getattr(call, "id", None) or getattr(call, "attr", None) for call in calls}
    return first.id if isinstance(first, ast.Name) and names & _COUNTING else ""
