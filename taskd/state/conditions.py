"""Says where the value of a condition goes: to all that is done, or left out, because of it.

Failure modes: something that depends on a condition is overlooked (a repair goes wrong silently), or the value of a
condition counts as used that decides only what is shown (all start over needlessly). It notes nothing itself.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from taskd.state.expressions import Expressions
from taskd.state.methods import EMPTIES, KEEPS, name_of
from taskd.state.nodes import all_in, stored_in
from taskd.state.places import Place
from taskd.state.statements import blocks_of, pairs
from taskd.state.track import EFFECT, NOWHERE, Sink


class Conditions:
    """The conditions of one loop."""

    def __init__(self, values: Expressions, given: Callable[[], Sink]) -> None:
        """`given` says where the value goes that the current function returns."""
        self._values, self._given = values, given
        self.rests: list[deque[ast.stmt] | None] = []
        """What follows in each of the blocks around the current statement; None: the beginning of a loop's body."""
        self._left_out = False
        """Whether it looks at what a condition leaves out."""

    def sink_of(self, block: Iterable[ast.stmt]) -> Sink:
        """Return where the value of a condition goes: to the places that this block changes, or to an effect."""
        places = list[Place]()
        every = [part for statement in block for part in _run(statement)]
        each = {name for node in every if isinstance(node, (ast.For, ast.AsyncFor)) for name in stored_in(node.target)}
        for node in every:
            sink = self._sink_of_one(node)
            if sink is None or any(place.path and place.root in each for place in sink):
                return EFFECT
            places += sink
        return tuple(places)

    def _sink_of_one(self, node: ast.stmt) -> Sink:
        match node:
            case ast.Assign() | ast.AnnAssign():
                sinks = [self._values.sink(target) for target, _ in pairs(node)]
                sinks += [EFFECT] if any(map(self._values.is_own, all_in(node))) else []
            case ast.AugAssign():
                sinks = [self._values.sink(node.target)]
            case ast.Expr(value=ast.Call() as call):
                owner = self._values.place(call.func.value) if isinstance(call.func, ast.Attribute) else None
                kept = owner is not None and name_of(call) in KEEPS | EMPTIES
                sinks = [NOWHERE if self._values.shows(call) else (owner,) if kept and owner is not None else EFFECT]
            case ast.Continue() | ast.Return():
                sinks = [self._sink_of_leaving(isinstance(node, ast.Return))]
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                sinks = [NOWHERE]
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.Match() | ast.Import():
                sinks = [NOWHERE]  # the statements inside it are visited separately
            case _:
                sinks = [EFFECT]
        return EFFECT if EFFECT in sinks else tuple(place for sink in sinks for place in sink or ())

    def _sink_of_leaving(self, returns: bool) -> Sink:
        """Return where the value of a condition goes under which the rest of a loop's body, or of a function
        (`returns`), is left out."""
        if self._left_out:
            return NOWHERE  # what follows is in the same rest
        left_out = list[ast.stmt]()
        for rest in reversed(self.rests):
            if rest is None and returns:
                return EFFECT  # further turns of a loop, too
            if rest is None:
                break
            left_out += rest
        self._left_out = True
        sink, given = self.sink_of(left_out), self._given()
        self._left_out = False
        return EFFECT if sink is None or (returns and given is None) else (*sink, *(given or ()))


def _run(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Return this statement and those inside it, but not those of functions."""
    yield statement
    for block, _ in blocks_of(statement):
        for inner in block:
            yield from _run(inner)
