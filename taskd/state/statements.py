"""The statements of a script: which variables they read, set, and move from their own value.

A variable is a name of the function, or an attribute of its `self`. Other places are handled in elsewhere.py.
This module does NOT parse anything and does not know loops.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence

from taskd.state.nodes import all_in
from taskd.state.places import Place
from taskd.state.sources import SCOPES

_HARMLESS = frozenset({"min", "max", "abs", "int", "float", "round", "len", "sum"})
"""Functions through which a number may move from its own value."""
_DISPLAYS = (ast.List, ast.Set, ast.Dict, ast.Tuple, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SELF, MODULE, HERE = "self", "module", ""
Variable = tuple[str, str]
"""The owner of a variable (SELF, MODULE, or HERE: the function that names it), and its name."""


def variable_of(node: ast.AST) -> Variable | None:
    """Return the variable that this node names, if it can be looked at."""
    if isinstance(node, ast.Name):
        return HERE, node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return SELF, node.attr
    return None


def is_of_self(place: Place) -> bool:
    """Whether it is an attribute of `self`, which counts as a variable."""
    return place.root == "self" and len(place.path) == 1 and place.path[0][0]


def is_variable(place: Place) -> bool:
    """Whether it is a variable of the function, of its `self`, or of a module."""
    return len(place.path) == bool(place.module) or is_of_self(place)


def pairs(statement: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Return the targets of an assignment, each with its own value if it has one."""
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


def moved_by(statement: ast.stmt) -> set[Variable]:
    """Return the variables that this statement moves from their own value."""
    moved: list[ast.expr] = [statement.target] if isinstance(statement, ast.AugAssign) else []
    moved += [target for target, value in pairs(statement) if _reckons_from(value, variable_of(target))]
    return {found for target in moved if (found := variable_of(target)) is not None}


def _reckons_from(value: ast.expr, variable: Variable | None) -> bool:
    """Whether this is computed from the variable by operations that keep it a number."""
    if variable is None or not _reads(value, variable):
        return False
    return keeps_numbers(value, [part for part in all_in(value) if _reads(part, variable)])


def keeps_numbers(value: ast.expr, parts: Iterable[ast.AST] | None = None) -> bool:
    """Whether the numbers in this expression stay numbers. `parts`: only these matter."""
    found = [*(all_in(value) if parts is None else parts)]
    calls = [part for part in found if isinstance(part, ast.Call)]
    made = isinstance(value, ast.BoolOp) or any(isinstance(part, _DISPLAYS) for part in found)
    return not made and all(
        call.func.id in _HARMLESS
        if isinstance(call.func, ast.Name)
        else isinstance(call.func, ast.Attribute) and call.func.attr == "item"
        for call in calls
    )


def _reads(node: ast.AST, variable: Variable) -> bool:
    return any(variable_of(part) == variable for part in all_in(node))


def set_to_numbers(statement: ast.stmt) -> set[Variable]:
    """Return the variables that this statement sets to a literal number."""
    found = {variable_of(target) for target, value in pairs(statement) if is_number(value)}
    return {one for one in found if one is not None}


def is_number(value: ast.expr) -> bool:
    """Whether this is a literal number."""
    value = value.operand if isinstance(value, ast.UnaryOp) else value
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def set_by(statement: ast.stmt) -> set[Variable]:
    """Return the variables that this statement sets to anything, or removes."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {(HERE, statement.name)}
    found = set[Variable]()
    for node in parts_of(statement):
        name = getattr(node, "name", None) or getattr(node, "rest", None)  # of a handler, or captured by a case
        if isinstance(node, ast.alias):
            name = (node.asname or node.name).split(".")[0]
        if isinstance(name, str):
            found.add((HERE, name))
        elif isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)) and (one := variable_of(node)) is not None:
            found.add(one)
    return found


def used_by(block: Sequence[ast.stmt]) -> set[Variable]:
    """Return the variables that these statements read under no condition, whenever they are run."""
    found = set[Variable]()
    for statement in block:
        for node in parts_of(statement):
            if isinstance(getattr(node, "ctx", None), ast.Load) and (one := variable_of(node)) is not None:
                found.add(one)
        for inner, depends in blocks_of(statement):
            if not depends:
                found |= used_by(inner)
    return found


def blocks_of(statement: ast.stmt) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Return the blocks inside a statement, each with whether it is run under a condition."""
    if isinstance(statement, SCOPES):
        return
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            yield block, isinstance(statement, ast.If) or name == "orelse"
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        yield part.body, True


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """Return the parts of a statement that are neither statements nor scopes of their own."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, *SCOPES)):
            continue
        if isinstance(child, ast.comprehension):  # its targets are its own
            parts: list[ast.AST] = [child.iter, *child.ifs]
        else:
            parts = [child]
        for part in parts:
            yield part
            yield from parts_of(part)
