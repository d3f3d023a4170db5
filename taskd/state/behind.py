"""Says whether a script needs, outside of a step's body, what the body sets at or behind the step's update.

`value = loss.item()` behind `optimizer.step()` is an example, if `print(value)` follows the `with step:`. A rehearsal
that ends at the update would lack the value. So would one in which a function makes the update and returns the loss.
Only what is lacking now counts: a name without a value; and, where the code would fail with it, None, an empty list,
or a count of 0 by which it divides. Apart from names, this covers containers and objects of the script's own classes
that the body changes or passes on.

Failure modes: something is needed and not seen (the newcomer's script fails, and all ranks start over), or it is not
needed (the rehearsal runs more of the body than it must); an object of the script raises an error when it is looked at
(then nothing is needed). It does NOT know what a rehearsal or an update is, and changes nothing (rest.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import CodeType
from typing import Any

from taskd import log
from taskd.state.nodes import all_in, locals_of
from taskd.state.places import ANY, NOTHING, NUMBERS, Place, space_of
from taskd.state.reach import place_of
from taskd.state.rest import CONTAINERS, Loops, Rest, frame_of, is_own
from taskd.state.script import Script
from taskd.state.sources import LOOPS, gives_locals, loops_at, node_of, unwrapped
from taskd.state.statements import blocks_of

_DIVIDES = (ast.Div, ast.FloorDiv, ast.Mod)
_FAIL_ON_NOTHING = frozenset({"max", "min", "float", "int", "round", "abs", "sum"})
_CHAINS = (ast.Name, ast.Attribute, ast.Subscript)
_logger = log.get(__name__)


class Missing(Enum):
    """What is missing at a place."""

    ALL = auto()  # there is nothing
    VALUE = auto()  # there is None
    COUNT = auto()  # there is 0
    ITEMS = auto()  # there is an empty container


@dataclass(frozen=True, slots=True)
class Read:
    """One place where code reads."""

    place: Place
    fragile: bool
    """It fails there with None, or with an empty container."""
    divides: bool
    """It divides by it."""

    def fails(self, place: Place, found: Missing) -> bool:
        """Whether it fails if this is missing at that place."""
        if not self.place.touches(place):
            return False
        deeper = self.place.path[len(place.path) :]
        if found is Missing.ITEMS:
            return self.fragile or self.divides or (bool(deeper) and not deeper[0][0])
        if found is Missing.VALUE:
            return self.fragile or self.divides or bool(deeper)
        return found is Missing.ALL or self.divides


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

    def rest(self, whole: bool, loops: Loops) -> Rest | None:
        """Return what the body sets and changes from here on. None: the script needs nothing of it. `whole`: the script
        goes on behind its loop before it does a step; otherwise only the loop's own code may need something. `loops`:
        the functions that ask for the step."""
        try:
            return self._rest(whole, loops)
        except Exception as error:  # objects of the script may raise anything
            _logger.info("what the rest of a step's body sets is not known: %s: %s", type(error).__name__, error)
            return None

    def _rest(self, whole: bool, loops: Loops) -> Rest | None:
        asking = Script.asking()
        script = frame_of(self.code, asking)
        home = None if script is None else node_of(self.code, script.space)
        block = None if home is None else _with_at(home, self.line)
        if script is None or home is None or block is None or any(map(gives_locals, all_in(home))):
            return None
        statements = [*_from(block.body, script.loop[1])]
        around = loops_at(home, self.line)
        reads = [*_read(home if whole or not around else around[-1], _same_steps(home, block))]
        changed = [(place, script.at(place)) for place in {*_changed_by(statements)}]
        needed = any(one.fails(place, found) for place, found in _lacking(script, statements) for one in reads)
        if not needed and not any(_is_asked_of(place, value, reads) for place, value in changed):
            return None
        rest, places = Rest(), {*_set_by(statements)}
        rest.note(script, places, places - {*_guards(statements)})
        for place, value in changed:
            rest.note_object(place.text, value)
        for place in places:
            rest.note_object(place.base.text, script.at(place.base))
        for code, written in loops:
            if (function := frame_of(code, asking)) is not None:
                here = places if code is self.code else set[Place]()
                rest.note(function, [one for one in written if one not in here])
        return rest


# ---- what is lacking --------------------------------------------------------------------------------------------


def _lacking(script: Script, statements: list[ast.stmt]) -> Iterator[tuple[Place, Missing]]:
    """Return the places that these statements set, each with what is missing there."""
    for place in {*_set_by(statements)}:
        whole = _up_to_computed_key(place)
        found = _missing(script.at(whole))
        if found is Missing.ITEMS or (found is not None and whole is place):
            yield whole, found


def _up_to_computed_key(place: Place) -> Place:
    """Return the container of a place whose key is computed; another place as it is."""
    at = next((at for at, (_, key) in enumerate(place.path) if key is ANY), None)
    return place if at is None else replace(place, path=place.path[:at])


def _missing(value: Any) -> Missing | None:
    if value is NOTHING:
        return Missing.ALL
    if value is None:
        return Missing.VALUE
    if type(value) in NUMBERS and value == 0:
        return Missing.COUNT
    return Missing.ITEMS if type(value) in CONTAINERS and not value else None


def _is_asked_of(place: Place, value: Any, reads: Iterable[Read]) -> bool:
    """Whether this code asks an object that is changed for something that it lacks now."""
    found = _missing(value) if type(value) in CONTAINERS else None
    if found is not None:
        return any(one.fails(place, found) for one in reads)
    if not is_own(value):
        return False
    functions = {name: node for kind in type(value).__mro__ for name, node in _functions_of(kind)}
    lacks = _lacks(space_of(value), [node for name, node in functions.items() if name != "__init__"])
    for one in reads:
        path = one.place.path[len(place.path) :]
        if not one.place.touches(place) or not lacks:
            continue
        if not path and Missing.ALL in lacks.values():
            return True  # the object as a whole is given to others
        name = path[0][1] if path else ""
        attribute = Place(name, name)
        inner = Read(Place(name, name, path[1:]), one.fragile, one.divides)
        if name in lacks and inner.fails(attribute, lacks[name]):
            return True
        if name in functions and any(_fails_in(functions[name], key, found) for key, found in lacks.items()):
            return True
    return False


def _fails_in(function: ast.AST, name: str, found: Missing) -> bool:
    """Whether this method fails if this attribute of its object lacks something."""
    place = Place(f"self.{name}", "self", ((True, name),))
    return any(one.fails(place, found) for one in _read(function))


def _lacks(space: dict[str, Any], functions: Iterable[ast.AST]) -> dict[str, Missing]:
    """Return what attributes of an object lack that these functions set. A container may be changed in many ways."""
    names = {name for node in functions for name in _attributes_set_in(node)}
    names |= {name for name, value in space.items() if type(value) in CONTAINERS}
    found = ((name, _missing(space.get(name, NOTHING))) for name in names)
    return {name: missing for name, missing in found if missing is not None}


def _functions_of(kind: type) -> Iterator[tuple[str, ast.AST]]:
    for name, value in vars(kind).items():
        function = unwrapped(value.fget if type(value) is property else value)
        node = None if function is None else node_of(function.__code__, function.__globals__)
        if node is not None:
            yield name, node


def _attributes_set_in(node: ast.AST) -> set[str]:
    return {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}


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


def _guards(statements: Iterable[ast.stmt]) -> Iterator[Place]:
    """Return the places that are set under a condition which asks for them. What is done there may be done once."""
    for node in (node for one in statements for node in ast.walk(one)):
        if isinstance(node, (ast.If, ast.While)):
            asked = [one.place for one in _read(node.test)] + [place for place in [place_of(node.test)] if place]
            yield from (place for place in _set_by(node.body) if any(one.touches(place) for one in asked))


def _same_steps(home: ast.AST, block: ast.With | ast.AsyncWith) -> list[ast.AST]:
    """Return all `with` statements of this code that enter the same step: only one of them is entered."""
    entered = ast.dump(block.items[0].context_expr)
    every = (node for node in ast.walk(home) if isinstance(node, (ast.With, ast.AsyncWith)))
    return [node for node in every if ast.dump(node.items[0].context_expr) == entered]


def _read(home: ast.AST, without: Iterable[ast.AST] = ()) -> Iterator[Read]:
    """Return what this code reads, except for that in `without`. Locals of functions in it are left out."""
    todo = [(node, frozenset[str](), False, False) for node in ast.iter_child_nodes(home)]
    added, left_out = set[int](), {*map(id, without)}
    while todo:
        node, hidden, fragile, divides = todo.pop()
        if id(node) in left_out:
            continue
        place = place_of(node) if isinstance(node, _CHAINS) else None
        read = isinstance(getattr(node, "ctx", None), ast.Load) or id(node) in added
        if place is not None and read and place.root not in hidden:
            yield Read(place, fragile, divides)
        if isinstance(node, ast.AugAssign):
            added.add(id(node.target))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            hidden |= locals_of(node)
        fragile = not isinstance(node, ast.stmt) and (fragile or _is_fragile(node))
        divisor = node.right if isinstance(node, ast.BinOp) and isinstance(node.op, _DIVIDES) else None
        for one in ast.iter_child_nodes(node) if place is None else _keys(node):
            todo.append((one, hidden, fragile, divides or one is divisor))


def _is_fragile(node: ast.AST) -> bool:
    """Whether this fails with None, or with an empty container."""
    if isinstance(node, ast.Compare):
        return any(isinstance(one, (ast.Lt, ast.LtE, ast.Gt, ast.GtE)) for one in node.ops)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FAIL_ON_NOTHING
    shown = isinstance(node, ast.FormattedValue) and node.format_spec is not None
    return shown or isinstance(node, (ast.BinOp, ast.UnaryOp))


def _keys(chain: ast.AST) -> Iterator[ast.AST]:
    """Return what computes the keys of a chain of attributes and items."""
    while isinstance(chain, (ast.Attribute, ast.Subscript)):
        if isinstance(chain, ast.Subscript):
            yield chain.slice
        chain = chain.value
