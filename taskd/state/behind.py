"""Says whether a script needs, outside of a step's body, what the body sets at or behind the step's update.

`value = loss.item()` behind `optimizer.step()` is an example, if `print(value)` follows the `with step:`. A rehearsal
that ends at the update would lack the value. So would one in which a function makes the update and returns the loss.
Only what is lacking now counts: a name without a value, an empty list, an attribute that is None, a count of 0. Apart
from names, this covers containers and objects of the script's own classes that the body changes or passes on.

Failure modes: something is needed and not seen (the newcomer's script fails, and all ranks start over), or it is not
needed (the rehearsal runs more of the body than it must); an object of the script raises an error when it is looked at
(then nothing is needed). It does NOT know what a rehearsal or an update is, and changes nothing (rest.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from taskd import log
from taskd.state.expressions import locals_of
from taskd.state.places import NOTHING, NUMBERS, Place, space_of
from taskd.state.reach import place_of
from taskd.state.rest import CONTAINERS, Rest, frame_of, is_own
from taskd.state.script import Script
from taskd.state.sources import LOOPS, loops_at, node_of, unwrapped
from taskd.state.statements import blocks_of

_CHAINS = (ast.Name, ast.Attribute, ast.Subscript)
_logger = log.get(__name__)


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a `with` statement of the script, while it runs."""

    code: CodeType
    line: int
    """The line of the `with` statement."""

    @classmethod
    def entered(cls) -> Body | None:
        """Return the body that the script enters now. None: no code of the script is there."""
        script = Script.asking()
        return None if script is None else cls(*script.loop)

    def rest(self, whole: bool) -> Rest | None:
        """Return what the body sets and changes from here on. None: the script needs nothing of it. `whole`: the script
        goes on behind its loop before it does a step; otherwise only the loop's own code may need something."""
        try:
            return self._rest(whole)
        except Exception as error:  # objects of the script may raise anything
            _logger.info("what the rest of a step's body sets is not known: %s: %s", type(error).__name__, error)
            return None

    def _rest(self, whole: bool) -> Rest | None:
        script = frame_of(self.code, Script.asking())
        home = None if script is None else node_of(self.code, script.space)
        block = None if home is None else _with_at(home, self.line)
        if script is None or home is None or block is None:
            return None
        statements = [*_from(block.body, script.loop[1])]
        loops = loops_at(home, self.line)
        reads = [*_read(home if whole or not loops else loops[-1], block)]
        changed = [(place, script.at(place)) for place in {*_changed_by(statements)}]
        needed = any(one.touches(place) for place in _lacking(script, statements) for one in reads)
        needed |= any(_is_asked_of(place, value, reads) for place, value in changed)
        return Rest.of(self.code, script, _set_by(statements), [value for _, value in changed]) if needed else None


# ---- what is lacking --------------------------------------------------------------------------------------------


def _lacking(script: Script, statements: list[ast.stmt]) -> Iterator[Place]:
    """Return the places that these statements set and that are not there yet, or would be counted from 0."""
    added = {id(node.target) for one in statements for node in ast.walk(one) if isinstance(node, ast.AugAssign)}
    for node in (node for one in statements for node in ast.walk(one)):
        place = place_of(node) if isinstance(getattr(node, "ctx", None), ast.Store) else None
        if place is not None:
            value = script.at(place)
            absent = value is NOTHING and (place.is_exact or _is_empty(script.at(place.base)))
            if absent or value is None or (id(node) in added and type(value) in NUMBERS and value == 0):
                yield place


def _is_asked_of(place: Place, value: Any, reads: Iterable[Place]) -> bool:
    """Whether this code asks an object that is changed for something that it lacks now."""
    if type(value) in CONTAINERS:
        return _is_empty(value) and any(one.touches(place) for one in reads)
    if not is_own(value):
        return False
    functions = {name: node for kind in type(value).__mro__ for name, node in _functions_of(kind)}
    lacks = _lacks(space_of(value), [node for name, node in functions.items() if name != "__init__"])
    uses = {name for name, node in functions.items() if lacks & _attributes_in(node, ast.Load)}
    asked = (one.path[len(place.path) :] for one in reads if one.touches(place))
    return bool(lacks) and any(not path or path[0][1] in lacks | uses for path in asked)


def _lacks(space: dict[str, Any], functions: Iterable[ast.AST]) -> set[str]:
    """Return the attributes of an object that these functions set, and that are not there yet or would be counted from
    0. A container that is empty lacks something, too."""
    names = {name for node in functions for name in _attributes_in(node, ast.Store)}
    found = {name for name in names if (value := space.get(name)) is None or (type(value) in NUMBERS and value == 0)}
    return found | {name for name, value in space.items() if _is_empty(value)}


def _is_empty(value: Any) -> bool:
    return type(value) in CONTAINERS and not value


def _functions_of(kind: type) -> Iterator[tuple[str, ast.AST]]:
    for name, value in vars(kind).items():
        function = unwrapped(value.fget if type(value) is property else value)
        node = None if function is None else node_of(function.__code__, function.__globals__)
        if node is not None:
            yield name, node


def _attributes_in(node: ast.AST, way: type[ast.expr_context]) -> set[str]:
    return {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, way)}


# ---- what the source says ---------------------------------------------------------------------------------------


def _with_at(home: ast.AST, line: int) -> ast.With | ast.AsyncWith | None:
    """Return the `with` statement whose items are on this line."""
    for node in ast.walk(home):
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.lineno <= line <= _last_line_of_items(node):
            return node
    return None


def _last_line_of_items(node: ast.With | ast.AsyncWith) -> int:
    return max(item.context_expr.end_lineno or 0 for item in node.items)


def _from(block: Iterable[ast.stmt], line: int) -> Iterator[ast.stmt]:
    """Return the statements of a block that are run at this line or behind it."""
    for statement in block:
        if (statement.end_lineno or 0) < line:
            continue
        inner = [*blocks_of(statement)]
        if statement.lineno < line and inner and not isinstance(statement, LOOPS):
            for one, _ in inner:
                yield from _from(one, line)
        else:
            yield statement


def _set_by(statements: Iterable[ast.stmt]) -> Iterator[Place]:
    """Return the places that these statements set."""
    for node in (node for one in statements for node in ast.walk(one)):
        place = place_of(node) if isinstance(getattr(node, "ctx", None), ast.Store) else None
        if place is not None:
            yield place


def _changed_by(statements: Iterable[ast.stmt]) -> Iterator[Place]:
    """Return the places of objects that these statements may change: whose methods they call, and what they pass on."""
    for node in (node for one in statements for node in ast.walk(one)):
        if not isinstance(node, ast.Call):
            continue
        owner = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        for part in (*owner, *node.args, *(word.value for word in node.keywords)):
            if isinstance(part, _CHAINS) and (place := place_of(part)) is not None:
                yield place


def _read(home: ast.AST, without: ast.AST) -> Iterator[Place]:
    """Return the places that this code reads, except for those in `without`. Locals of functions in it are left out."""
    todo = [(node, frozenset[str]()) for node in ast.iter_child_nodes(home)]
    added = set[int]()  # targets that are added to
    while todo:
        node, hidden = todo.pop()
        if node is without:
            continue
        place = place_of(node) if isinstance(node, _CHAINS) else None
        read = isinstance(getattr(node, "ctx", None), ast.Load) or id(node) in added
        if place is not None and read and place.root not in hidden:
            yield place
        if isinstance(node, ast.AugAssign):
            added.add(id(node.target))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            hidden |= locals_of(node)
        todo += [(one, hidden) for one in (ast.iter_child_nodes(node) if place is None else _keys(node))]


def _keys(chain: ast.AST) -> Iterator[ast.AST]:
    """Return what computes the keys of a chain of attributes and items."""
    while isinstance(chain, (ast.Attribute, ast.Subscript)):
        if isinstance(chain, ast.Subscript):
            yield chain.slice
        chain = chain.value
