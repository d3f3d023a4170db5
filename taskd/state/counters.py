"""Which variables a script counts in its loop, read from its source: `global_step += 1`, `self.tokens += n`.

A step that is done again has to find a count as the first attempt found it. Other variables are better left alone: what
is set anew in each step needs no help, and a number may stand for an object that nobody puts back (a descriptor, the
place of an iterator, a guard of what is done once). So a counter is what the body of the loop moves from its own value
(`n += ...`, `n = n + ...`, `best = min(best, loss)`), or a function of the same module that the body calls, or a method
of the same `self`. Doubtful, and left alone, is a counter that is also set to something other than a number
(`n = unknown()`), or that moves under a condition together with what every step uses
(`if i == len(data): it = iter(data); i = 0`), and all locals of a function that calls `locals()`.

What the loop counts in other places (elsewhere.py) is only found, to be said. So is what it counts to by `enumerate`.

It does NOT see functions of other modules, what stands behind two calls of other objects, and code without a source.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from taskd.state.elsewhere import Aliases, Place, aliases_of, asked, changed, moved, numbered
from taskd.state.flow import Flow, Function
from taskd.state.statements import (
    HERE,
    MODULE,
    SCOPES,
    SELF,
    Variable,
    blocks_of,
    is_of_self,
    moved_by,
    parts_of,
    set_by,
    set_to_numbers,
    used_by,
    variable_of,
)

_LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(slots=True)
class Counters:
    """Of one loop."""

    local: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    module: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Of a function that calls `locals()`: what a frame says of its locals is written into the dict that this gives."""
    elsewhere: list[Place] = field(default_factory=list)
    """What may be a count, and is none of these."""
    changed: list[Place] = field(default_factory=list)
    """What is changed in place, if it is a tensor or has some."""

    def add(self, variable: Variable) -> None:
        """One more."""
        owner, name = variable
        {SELF: self.attributes, MODULE: self.module, HERE: self.local}[owner].append(name)


class Loop(NamedTuple):
    """What a loop does to variables from step to step."""

    counts: Counters
    doubtful: Counters
    handed_on: Counters
    """Others that one step finds as another one has left them."""
    used: frozenset[Variable] = frozenset()
    """What steps find so and is neither only moved nor only shown, counters among it."""


@dataclass(slots=True)
class _Found:
    """What a row of statements does to variables."""

    counted: set[Variable] = field(default_factory=set)
    doubtful: set[Variable] = field(default_factory=set)
    """Counted or not, they are set in another way."""
    called: set[Variable] = field(default_factory=set)
    elsewhere: set[Place] = field(default_factory=set)
    changed: set[Place] = field(default_factory=set)
    handed_on: set[Variable] = field(default_factory=set)
    used: set[Variable] = field(default_factory=set)
    shares_locals: bool = False

    def look_at(
        self, block: Sequence[ast.stmt], used: set[Variable], conditional: bool, aliases: Aliases | None = None
    ) -> None:
        """At these statements and those inside of them. `used`: what is read whenever the whole is run; `aliases`: what
        the variables of loops inside are taken from."""
        replaced, counted = set[Variable](), set[Variable]()
        aliases = aliases or {}
        for statement in block:
            by_itself = moved_by(statement)
            counted |= by_itself
            replaced |= {one for one in set_by(statement) if one not in by_itself}
            calls = [node for node in parts_of(statement) if isinstance(node, ast.Call)]
            self.called |= {found for call in calls if (found := variable_of(call.func)) is not None}
            self.elsewhere |= {place for call in calls if (place := asked(call)) is not None}
            self.elsewhere |= {place for place in moved(statement) if not is_of_self(place)}
            inner_aliases = aliases | aliases_of(statement)
            self.changed |= {place for one in changed(statement, calls) for place in inner_aliases.get(one.root, [one])}
            for inner, depends in blocks_of(statement):
                self.look_at(inner, used, conditional or depends, inner_aliases)
        numbers = {one for statement in block for one in set_to_numbers(statement)}
        self.counted |= counted
        self.doubtful |= replaced - numbers
        if conditional and (replaced - numbers) & used:
            self.doubtful |= counted | numbers

    def of(self, code: CodeType) -> _Found:
        """The same with names of the module as such."""
        own = own_names(code)

        def home(variables: set[Variable]) -> set[Variable]:
            return {(MODULE, name) if owner == HERE and name not in own else (owner, name) for owner, name in variables}

        return _Found(home(self.counted), home(self.doubtful), self.called, self.elsewhere, self.changed)


def of_loop(code: CodeType, line: int, space: dict[str, Any], function: Callable[[Variable], Any]) -> Loop:
    """What the innermost loop of this code around this line does. `space`: its module; `function`: what a name, or a
    method of `self`, is there."""
    loop = Loop(Counters(), Counters(), Counters())
    try:
        found = _of_loop(code, line, space, function)
    except RecursionError:  # an expression of many hundred parts
        found = _Found()
    for variable in sorted(found.counted | found.handed_on):
        if found.shares_locals and variable[0] != MODULE:
            loop.doubtful.unread.append(variable[1])
        elif variable not in found.counted:
            loop.handed_on.add(variable)
        else:
            (loop.doubtful if variable in found.doubtful else loop.counts).add(variable)
    hidden = own_names(code) if found.shares_locals else frozenset[str]()
    elsewhere = [place for place in found.elsewhere if place.root not in hidden]
    loop.doubtful.elsewhere = sorted(elsewhere, key=lambda place: (place.text, place.method))
    kept = [place for place in found.changed if place.root not in hidden]
    loop.counts.changed = sorted(kept, key=lambda place: place.text)
    return loop._replace(used=frozenset(found.handed_on & found.used))


def of_function(function: FunctionType) -> list[str]:
    """What a method moves of its `self`, whatever it has been taken from."""
    node = _node_of(function.__code__, function.__globals__)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    return sorted(name for owner, name in _found_in(node.body, function.__code__).counted if owner == SELF)


def _of_loop(code: CodeType, line: int, space: dict[str, Any], function: Callable[[Variable], Any]) -> _Found:
    home = _node_of(code, space)
    loop = _loop_at(home, line)
    if home is None or loop is None:
        return _Found()
    shares = code.co_name != "<module>" and any(map(_gives_locals, ast.walk(home)))
    if shares:
        function = partial(_of_module, space)
    body = _found_in(loop.body, code, numbered(loop))
    todo, met = [*body.called], {code}
    while todo:
        called = _unwrapped(function(todo.pop()), space)
        if called is None or called.__code__ in met:
            continue
        met.add(called.__code__)
        node = _node_of(called.__code__, space)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found = _found_in(node.body, called.__code__)
            todo += found.called
            shared = {(HERE, name) for name in {*called.__code__.co_freevars} & {*code.co_cellvars, *code.co_freevars}}
            body.counted |= {one for one in found.counted if one[0] != HERE or one in shared}
            body.doubtful |= {one for one in found.doubtful if one[0] != HERE or one in shared}
            body.elsewhere |= found.elsewhere
            mine = own_names(called.__code__) - {name for _, name in shared} - {"self"}
            body.changed |= {place for place in found.changed if place.root not in mine}
    body.shares_locals = shares
    flow = Flow(_functions(function, space, code), own_names(code) if code.co_name != "<module>" else frozenset())
    flow.follow(loop.body, flow.targets(loop))
    body.handed_on, body.used = flow.handed_on, flow.used
    fresh = {name for owner, name in flow.written if owner != SELF}
    body.changed = {place for place in body.changed if place.root not in fresh}
    return body


def _functions(
    named: Callable[[Variable], Any], space: dict[str, Any], code: CodeType
) -> Callable[[Variable], Function | None]:
    """The functions of this module that a name, or a method of `self`, may stand for."""
    known: dict[CodeType, Function | None] = {}
    cells = {*code.co_cellvars, *code.co_freevars}

    def function(variable: Variable) -> Function | None:
        called = _unwrapped(named(variable), space)
        if called is None:
            return None
        inner = called.__code__
        if inner not in known:
            node = _node_of(inner, space)
            shared = cells.intersection(inner.co_freevars)
            known[inner] = None
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                known[inner] = Function(node.body, own_names(inner) - shared, frozenset(shared))
        return known[inner]

    return function


def _found_in(block: Sequence[ast.stmt], code: CodeType, number: str = "") -> _Found:
    """`number`: a variable that is counted and set by somebody else."""
    found = _Found()
    found.look_at(block, used_by(block), False)
    if number:
        found.counted.add((HERE, number))
        found.doubtful.add((HERE, number))
    return found.of(code)


def _gives_locals(node: ast.AST) -> bool:
    """Whether this is `locals()`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    return node.func.id == "locals" or (node.func.id == "vars" and not node.args)


def _of_module(space: dict[str, Any], called: Variable) -> Any:
    owner, name = called
    return None if owner else space.get(name)


def _unwrapped(value: Any, space: dict[str, Any]) -> FunctionType | None:
    """A function of this module, also behind decorators."""
    for _ in range(16):
        if type(value) is not FunctionType:
            return None
        if "__wrapped__" not in vars(value):
            return value if value.__globals__ is space else None
        value = vars(value)["__wrapped__"]
    return None


@lru_cache(maxsize=1024)
def own_names(code: CodeType) -> frozenset[str]:
    """Of a function's locals."""
    return frozenset((*code.co_varnames, *code.co_cellvars, *code.co_freevars))


# ---- sources ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4)
def _parsed(source: str) -> tuple[ast.Module | None, dict[tuple[str, int], ast.AST]]:
    """A source, and its functions by name and first line."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None, {}
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return tree, {(node.name, min(one.lineno for one in (node, *node.decorator_list))): node for node in functions}


def _node_of(code: CodeType, space: dict[str, Any]) -> ast.AST | None:
    """Where this code stands in its source; None: it is not there."""
    tree, functions = _parsed("".join(linecache.getlines(code.co_filename, space)))
    return tree if code.co_name == "<module>" else functions.get((code.co_name, code.co_firstlineno))


def _loop_at(home: ast.AST | None, line: int) -> Any:
    """The innermost loop of this code around a line."""
    found: Any = None
    todo = [home]
    while todo:
        node = todo.pop()
        for child in ast.iter_child_nodes(node) if node is not None else ():
            if isinstance(child, ast.stmt) and child.lineno <= line <= (child.end_lineno or 0):
                if not isinstance(child, SCOPES):
                    found = child if isinstance(child, _LOOPS) else found
                    todo.append(child)
            elif not isinstance(child, (ast.stmt, ast.expr)):
                todo.append(child)  # a handler, a case
    return found
