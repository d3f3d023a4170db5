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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import CodeType, FunctionType
from typing import Any

from taskd.state.elsewhere import Place, asked, moved, numbered

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_HARMLESS = frozenset({"min", "max", "abs", "int", "float", "round", "len", "sum"})
"""Functions through which a number may move from its own value."""
SELF, MODULE, HERE = "self", "module", ""
Variable = tuple[str, str]
"""Of what it is a variable (SELF, MODULE, or HERE: of the function that names it), and its name."""


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

    def add(self, variable: Variable) -> None:
        """One more."""
        owner, name = variable
        {SELF: self.attributes, MODULE: self.module, HERE: self.local}[owner].append(name)


@dataclass(slots=True)
class _Found:
    """What a row of statements does to variables."""

    counted: set[Variable] = field(default_factory=set)
    doubtful: set[Variable] = field(default_factory=set)
    """Counted or not, they are set in another way."""
    called: set[Variable] = field(default_factory=set)
    elsewhere: set[Place] = field(default_factory=set)
    shares_locals: bool = False

    def look_at(self, block: Sequence[ast.stmt], used: set[Variable], conditional: bool) -> None:
        """At these statements and those inside of them. `used`: what is read whenever the whole is run."""
        replaced, counted = set[Variable](), set[Variable]()
        for statement in block:
            by_itself = _moved(statement)
            counted |= by_itself
            replaced |= {one for one in _set(statement) if one not in by_itself}
            calls = [node for node in _inside(statement) if isinstance(node, ast.Call)]
            self.called |= {found for call in calls if (found := _variable(call.func)) is not None}
            self.elsewhere |= {place for call in calls if (place := asked(call)) is not None}
            self.elsewhere |= {place for place in moved(statement) if not _is_of_self(place)}
            for inner, depends in _blocks(statement):
                self.look_at(inner, used, conditional or depends)
        numbers = {one for statement in block for one in _set_to_numbers(statement)}
        self.counted |= counted
        self.doubtful |= replaced - numbers
        if conditional and (replaced - numbers) & used:
            self.doubtful |= counted | numbers

    def of(self, code: CodeType) -> _Found:
        """The same with names of the module as such."""
        own = own_names(code)

        def home(variables: set[Variable]) -> set[Variable]:
            return {(MODULE, name) if owner == HERE and name not in own else (owner, name) for owner, name in variables}

        return _Found(home(self.counted), home(self.doubtful), self.called, self.elsewhere)


def of_loop(
    code: CodeType, line: int, space: dict[str, Any], function: Callable[[Variable], Any]
) -> tuple[Counters, Counters]:
    """The counters of the innermost loop of this code around this line, and the doubtful ones. `space`: its module;
    `function`: what a name, or a method of `self`, is there."""
    sure, doubtful = Counters(), Counters()
    try:
        found = _of_loop(code, line, space, function)
    except RecursionError:  # an expression of many hundred parts
        found = _Found()
    for variable in sorted(found.counted):
        if found.shares_locals and variable[0] != MODULE:
            doubtful.unread.append(variable[1])
        else:
            (doubtful if variable in found.doubtful else sure).add(variable)
    hidden = own_names(code) if found.shares_locals else frozenset[str]()
    elsewhere = [place for place in found.elsewhere if place.root not in hidden]
    doubtful.elsewhere = sorted(elsewhere, key=lambda place: (place.text, place.method))
    return sure, doubtful


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
    body.shares_locals = shares
    return body


def _found_in(block: Sequence[ast.stmt], code: CodeType, number: str = "") -> _Found:
    """`number`: a variable that is counted and set by somebody else."""
    found = _Found()
    found.look_at(block, _used(block), False)
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


# ---- statements ---------------------------------------------------------------------------------------------------


def _variable(node: ast.AST) -> Variable | None:
    """Which variable this is, if it is one that can be looked at."""
    if isinstance(node, ast.Name):
        return HERE, node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return SELF, node.attr
    return None


def _is_of_self(place: Place) -> bool:
    """Whether it is a variable after all, as an attribute of `self` is."""
    return place.root == "self" and len(place.path) == 1 and place.path[0][0]


def _pairs(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """What an assignment sets, each with its value where it has one of its own."""
    if isinstance(statement, ast.AnnAssign) and statement.value is not None:
        yield statement.target, statement.value
    if not isinstance(statement, ast.Assign):
        return
    value = statement.value
    values = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
    for target in statement.targets:
        targets = target.elts if isinstance(target, (ast.Tuple, ast.List)) else []
        if targets and len(targets) == len(values):
            yield from zip(targets, values, strict=True)
        else:
            yield target, value


def _moved(statement: ast.stmt) -> set[Variable]:
    """The variables that this moves from their own value."""
    moved: list[ast.expr] = [statement.target] if isinstance(statement, ast.AugAssign) else []
    moved += [target for target, value in _pairs(statement) if _reckons_from(value, _variable(target))]
    return {found for target in moved if (found := _variable(target)) is not None}


def _reckons_from(value: ast.expr, variable: Variable | None) -> bool:
    """Whether this is reckoned from the variable, by nothing that could stand for an object."""
    parts = [*ast.walk(value)]
    calls = [part.func for part in parts if isinstance(part, ast.Call)]
    plain = all(
        call.id in _HARMLESS if isinstance(call, ast.Name) else isinstance(call, ast.Attribute) and call.attr == "item"
        for call in calls
    )
    return variable is not None and plain and any(_variable(part) == variable for part in parts)


def _set_to_numbers(statement: ast.stmt) -> set[Variable]:
    """The variables that this sets to a number that stands there."""
    return {found for target, value in _pairs(statement) if _number(value) and (found := _variable(target)) is not None}


def _number(value: ast.expr) -> bool:
    value = value.operand if isinstance(value, ast.UnaryOp) else value
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def _set(statement: ast.stmt) -> set[Variable]:
    """The variables that this sets or removes, whatever to."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {(HERE, statement.name)}
    found = set[Variable]()
    for node in _inside(statement):
        name = getattr(node, "name", None) or getattr(node, "rest", None)  # of a handler, and of what a case catches
        if isinstance(node, ast.alias):
            name = (node.asname or node.name).split(".")[0]
        if isinstance(name, str):
            found.add((HERE, name))
        elif isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)) and (one := _variable(node)) is not None:
            found.add(one)
    return found


def _used(block: Sequence[ast.stmt]) -> set[Variable]:
    """What these statements read whenever they are run, under no condition."""
    found = set[Variable]()
    for statement in block:
        for node in _inside(statement):
            if isinstance(getattr(node, "ctx", None), ast.Load) and (one := _variable(node)) is not None:
                found.add(one)
        for inner, depends in _blocks(statement):
            if not depends:
                found |= _used(inner)
    return found


def _blocks(statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    """The blocks inside of a statement, and whether it depends on something that they are run."""
    if isinstance(statement, _SCOPES):
        return
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block, isinstance(statement, ast.If) or name == "orelse"
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body, True


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a statement that are no statements, and no scopes of their own."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, *_SCOPES)):
            continue
        if isinstance(child, ast.comprehension):  # its targets are its own
            parts: list[ast.AST] = [child.iter, *child.ifs]
        else:
            parts = [child]
        for part in parts:
            yield part
            yield from _inside(part)


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
                if not isinstance(child, _SCOPES):
                    found = child if isinstance(child, _LOOPS) else found
                    todo.append(child)
            elif not isinstance(child, (ast.stmt, ast.expr)):
                todo.append(child)  # a handler, a case
    return found
