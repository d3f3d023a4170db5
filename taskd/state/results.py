"""Says whether what a function of the script leaves behind has an effect in the functions that have called it.

`return running / n` behind a loop is an example, and so is `self.losses.append(loss)`. If the callers only print it, a
newcomer may lack a part of it. If the next epoch's loss is computed from it, it may not.

Failure modes: a value that has an effect counts as one that has none (a repair goes wrong silently), or the other way
round (all start over needlessly). In doubt, what is returned has an effect. An attribute has one only where a caller is
seen to use it: to pass on `self` is not to use all that is in it. It does NOT know the stack.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, NamedTuple

from taskd.state.expressions import ASKED
from taskd.state.flow import Flow
from taskd.state.methods import name_of
from taskd.state.nodes import all_in
from taskd.state.places import Place
from taskd.state.reach import Names, Reach
from taskd.state.sources import SCOPES, Node, gives_locals, node_of
from taskd.state.track import EFFECT, NOWHERE


class Caller(NamedTuple):
    """A function that waits for another one."""

    code: CodeType
    line: int
    """The line of its call."""
    space: dict[str, Any]
    look: Callable[[Place], Any]
    """Returns the value at a place."""
    direct: bool
    """No code of a library is between the two."""


@dataclass(slots=True)
class Uses:
    """What the callers of a function do with what it leaves behind."""

    result: bool
    """What it returns has an effect."""
    _callers: list[tuple[list[Names], set[Place]]] = field(default_factory=list)
    """For each caller: the names of the function as this caller sees them, and the places that it uses."""

    @classmethod
    def of(cls, code: CodeType, callers: Sequence[Caller], whole: bool) -> Uses:
        """Follow the callers of this function, the nearest first. `whole`: no other code gets what the last returns."""
        uses = cls(not whole)
        for at in range(len(callers) - 1, -1, -1):
            uses._follow(callers[at], callers[at - 1].code if at else code, code)
        return uses

    def use(self, place: Place) -> bool:
        """Whether a caller uses this place of the function."""
        for every, used in self._callers:
            seen = [one for names in every if (one := names.place(place)) is not None]
            if any(one.touches(other) and other not in owners_of(every) for one in seen for other in used):
                return True
        return False

    def _follow(self, caller: Caller, called: CodeType, awaited: CodeType) -> None:
        """Follow one caller, whose callers were followed before."""
        home = node_of(caller.code, caller.space)
        calls = [] if home is None else _calls_at(home, caller.line)
        gives, self.result = EFFECT if self.result else NOWHERE, True
        if home is None or not calls or any(map(gives_locals, all_in(home))):
            return
        flow = Flow(Reach(caller.code, caller.space, caller.look), True, gives)
        named = [call for call in calls if name_of(call) == called.co_name]
        values, track = flow.values, flow.track
        values.asked, values.awaited = frozenset(named or calls), awaited
        try:
            flow.whole(home)
        except RecursionError:  # an expression of many hundred parts
            return
        owners = owners_of(values.met)
        leads = track.leads(owners)
        self.result = ASKED in leads or not caller.direct
        self._callers.append((values.met, track.leaves(leads, owners)))


def owners_of(every: Iterable[Names]) -> set[Place]:
    """Return the objects whose method the function is. To pass on such an object is not to use all that is in it."""
    return {names.bound["self"] for names in every if "self" in names.bound}


def _calls_at(home: ast.AST, line: int) -> list[ast.Call]:
    calls = (node for node in ast.walk(home) if isinstance(node, ast.Call))
    return [call for call in calls if call.lineno <= line <= (call.end_lineno or 0)]


def returns(home: ast.Module | Node) -> bool:
    """Whether this function returns a value that it does not name itself."""
    todo: list[ast.AST] = [*home.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Return) and not isinstance(node.value, (ast.Constant, type(None))):
            return True
        todo += [] if isinstance(node, SCOPES) else ast.iter_child_nodes(node)
    return False


ALL = Uses(True)
"""Stands for callers that are not known."""
