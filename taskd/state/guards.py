"""Finds what guards something that a loop does only once: `if not done: register(); done = True`.

No repair undoes what was done, so the guard must stay as it is. A guard is read by the condition of a block, and the
block sets it and calls something or raises. A function that begins with `if done: return` is such a block, too. A
guard is set nowhere else, so a flag that toggles is none. A flag that only ends a phase
(`if warm and loss < 1: warm = False`) is none, either. This module does NOT know any values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from taskd.state.expressions import Expressions
from taskd.state.methods import name_of
from taskd.state.nodes import all_in
from taskd.state.places import Place
from taskd.state.statements import pairs

_FILLS = frozenset({"add", "append", "extend", "insert", "setdefault", "update"})
"""Methods that put something into a container."""
_REGISTER = ("register", "add_", "parametri", "subscribe", "attach")
"""With these begin the names of calls that leave something behind, even if somebody keeps their result."""


class Guards:
    """The guards of one loop."""

    def __init__(self, values: Expressions) -> None:
        self._values = values
        self._guards: dict[Place, set[int]] = {}
        """For each place that may be a guard, the ids of the statements that set it in its block."""
        self._set_at: dict[Place, set[int]] = {}
        """The ids of all statements that set a place."""
        self._early = set[Place]()
        """Places because of which the function that is followed may return at once."""
        self._body: Sequence[ast.stmt] = ()
        """The body of that function."""

    @property
    def found(self) -> set[Place]:
        """All guards."""
        return {place for place, there in self._guards.items() if self._set_at.get(place, set()) <= there}

    def enter(self, body: Sequence[ast.stmt]) -> tuple[set[Place], Sequence[ast.stmt]]:
        """A function with this body is entered. Return what `leave` needs."""
        outer = self._early, self._body
        self._early, self._body = set(), body
        return outer

    def leave(self, outer: tuple[set[Place], Sequence[ast.stmt]]) -> None:
        """The function is left."""
        self._early, self._body = outer

    def look_at(self, test: ast.expr, block: Sequence[ast.stmt]) -> None:
        """Look at a block that is run under this condition."""
        tested = set(self._values.places_in(test))
        if isinstance(block[0], ast.Return) and block[0].value is None:
            self._early |= tested
        nodes = _nodes(block)
        filled = self._filled(nodes, tested)
        if self._acts(nodes, filled, tested):
            for place in filled.values():
                self._guards.setdefault(place, set())
            for node in nodes:
                for place in tested.intersection(self._places_set(node)):
                    self._guards.setdefault(place, set()).add(id(node))

    def sets(self, statement: ast.stmt) -> None:
        """Note what an assignment sets."""
        for place in self._places_set(statement):
            self._set_at.setdefault(place, set()).add(id(statement))
            if place in self._early and self._acts(nodes := _nodes(self._body), self._filled(nodes, {place}), {place}):
                self._guards.setdefault(place, set()).add(id(statement))

    def _acts(self, nodes: Sequence[ast.AST], filled: dict[int, Place], tested: set[Place]) -> bool:
        """Whether these statements call something for its effect, or raise. `filled`: calls that do not count. Neither
        do calls of what was tested itself: `if self.g is None: self.g = Generator(); self.g.manual_seed(1)`."""
        calls = [call for call in _calls(nodes) if id(call) not in filled and not self._values.shows(call)]
        calls = [call for call in calls if not self._is_of(call, tested)]
        calls += [one for one in nodes if isinstance(one, ast.Call) and name_of(one).startswith(_REGISTER)]
        return bool(calls) or any(isinstance(node, ast.Raise) for node in nodes)

    def _is_of(self, call: ast.Call, places: set[Place]) -> bool:
        return isinstance(call.func, ast.Attribute) and self._values.place(call.func.value) in places

    def _places_set(self, node: ast.AST) -> Iterator[Place]:
        """Return the places that this statement sets, and the containers of which it sets an item."""
        for target, _ in pairs(node) if isinstance(node, ast.stmt) else ():
            for part in (target, target.value if isinstance(target, ast.Subscript) else None):
                if (place := self._values.place(part)) is not None:
                    yield place

    def _filled(self, nodes: Sequence[ast.AST], tested: set[Place]) -> dict[int, Place]:
        """Return those of these containers into which a call puts something, by the id of the call."""
        fills = [
            (call, self._values.place(call.func.value))
            for call in _calls(nodes)
            if isinstance(call.func, ast.Attribute) and call.func.attr in _FILLS
        ]
        return {id(call): place for call, place in fills if place in tested and place is not None}


def _nodes(block: Sequence[ast.stmt]) -> list[ast.AST]:
    return [node for statement in block for node in all_in(statement)]


def _calls(nodes: Sequence[ast.AST]) -> list[ast.Call]:
    """Return the calls whose results nobody uses."""
    return [node.value for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
