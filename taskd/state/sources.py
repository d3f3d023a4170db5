"""Finds the code of a script in its source, and says whether code belongs to the script.

Installed packages, the standard library and taskd itself are not the script. Sources are read as tracebacks read them,
and parsed once. This module does NOT know what a statement means.
"""

from __future__ import annotations

import ast
import linecache
import site
import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
LOOPS = (ast.For, ast.AsyncFor, ast.While)
Node = ast.FunctionDef | ast.AsyncFunctionDef
_INSTALLED = tuple(
    f"{Path(path)}/"
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *site.getsitepackages(),
        site.getusersitepackages(),
        str(Path(__file__).parents[1]),
    }
)
_DECORATORS = 16
"""At most this many decorators around one function are unwrapped."""


@lru_cache(maxsize=1024)
def passed_over(file: str, function: str) -> bool:
    """Whether code is not the script's: it is taskd's, an installed package's, or a comprehension."""
    unnamed = function.startswith("<") and function not in ("<module>", "<lambda>")
    return unnamed or file.startswith(("<frozen", *_INSTALLED))


def is_the_scripts(kind: type) -> bool:
    """Whether the script defines this class."""
    return is_a_scripts_file(sys.modules.get(kind.__module__))


def is_a_scripts_file(module: Any) -> bool:
    """Whether this is a module of the script."""
    file = vars(module).get("__file__") if issubclass(type(module), ModuleType) else None
    return type(file) is str and not passed_over(file, "<module>")


def unwrapped(value: Any) -> FunctionType | None:
    """Return this function if it is the script's, without its decorators."""
    for _ in range(_DECORATORS):
        if type(value) is not FunctionType:
            return None
        if "__wrapped__" not in vars(value):
            code = value.__code__
            return None if passed_over(code.co_filename, code.co_name) else value
        value = vars(value)["__wrapped__"]
    return None


@lru_cache(maxsize=1024)
def own_names(code: CodeType) -> frozenset[str]:
    """Return the names of a function's locals."""
    return frozenset((*code.co_varnames, *code.co_cellvars, *code.co_freevars))


def _spell_out(tree: ast.Module) -> ast.Module:
    """`getattr(x, "n", 0)` becomes `x.n`, and `setattr(x, "n", value)` becomes `x.n = value`."""
    todo: list[ast.AST] = [tree]
    while todo:  # no recursion: an expression may be deeper than Python's limit
        node = todo.pop()
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = map(_spelled_out, value)
            elif isinstance(value, ast.AST):
                setattr(node, field, _spelled_out(value))
        todo += ast.iter_child_nodes(node)
    return tree


def _spelled_out(node: Any) -> Any:
    match node:
        case ast.Expr(value=ast.Call() as call) if _is_call_of("setattr", call, 3, 3):
            return ast.copy_location(ast.Assign([_attribute(call, ast.Store())], call.args[2]), node)
        case ast.Call() if _is_call_of("getattr", node, 2, 3):
            return _attribute(node, ast.Load()) if isinstance(node.args[-1], ast.Constant) else node
    return node


def _is_call_of(name: str, node: ast.Call, least: int, most: int) -> bool:
    """Whether this calls `name` with `least` to `most` arguments, of which the second is a literal text."""
    plain = isinstance(node.func, ast.Name) and node.func.id == name and not node.keywords
    second = node.args[1] if plain and least <= len(node.args) <= most else None
    return isinstance(second, ast.Constant) and isinstance(second.value, str)


def _attribute(call: ast.Call, context: ast.expr_context) -> ast.Attribute:
    assert isinstance(call.args[1], ast.Constant)
    return ast.copy_location(ast.Attribute(call.args[0], str(call.args[1].value), context), call)


@lru_cache(maxsize=16)
def _parsed(source: str) -> tuple[ast.Module | None, dict[tuple[str, int], Node]]:
    """Return a source's tree, and its functions by name and first line."""
    try:
        tree = _spell_out(ast.parse(source))
    except (SyntaxError, ValueError):
        return None, {}
    functions = [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return tree, {(node.name, min(one.lineno for one in (node, *node.decorator_list))): node for node in functions}


def node_of(code: CodeType, space: dict[str, Any]) -> ast.Module | Node | None:
    """Return the node of this code in its source. None: it is not there."""
    tree, functions = _parsed("".join(linecache.getlines(code.co_filename, space)))
    return tree if code.co_name == "<module>" else functions.get((code.co_name, code.co_firstlineno))


def loops_at(home: ast.AST | None, line: int) -> list[Any]:
    """Return the loops of this code around a line, the innermost last."""
    found = list[Any]()
    todo = [home]
    while todo:
        node = todo.pop()
        for child in ast.iter_child_nodes(node) if node is not None else ():
            if isinstance(child, ast.stmt) and child.lineno <= line <= (child.end_lineno or 0):
                if not isinstance(child, SCOPES):
                    found += [child] if isinstance(child, LOOPS) else []
                    todo.append(child)
            elif not isinstance(child, (ast.stmt, ast.expr)):
                todo.append(child)  # a handler, a case
    return found


def gives_locals(node: ast.AST) -> bool:
    """Whether this is `locals()`."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    return node.func.id == "locals" or (node.func.id == "vars" and not node.args)
