"""What single nodes of a source say by themselves. This never changes, so each node keeps the answers.

The analysis of a loop asks the same nodes many times: it follows a function once for each of its calls, and the loop
several times. This module does NOT know objects, nor what a statement means.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

Answer = TypeVar("Answer")
_UNKNOWN = object()


def kept_in_node(question: Callable[[ast.AST], Answer]) -> Callable[[ast.AST], Answer]:
    """Let each node keep the answer to this question. The answer must not be changed by those who ask."""
    name = f"_taskd_{question.__name__}"

    @wraps(question)
    def answer(node: ast.AST) -> Answer:
        found = node.__dict__.get(name, _UNKNOWN)
        if found is _UNKNOWN:
            found = node.__dict__[name] = question(node)
        return found  # type: ignore[no-any-return]

    return answer


@kept_in_node
def all_in(node: ast.AST) -> tuple[ast.AST, ...]:
    """Return this node and all inside it, the outer ones first."""
    return (*ast.walk(node),)


@kept_in_node
def text_of(node: ast.AST) -> str:
    """Return a text that is the same for nodes that say the same."""
    return ast.dump(node)


@kept_in_node
def names_in(node: ast.AST) -> frozenset[str]:
    """Return all names in this code."""
    return frozenset(one.id for one in all_in(node) if isinstance(one, ast.Name))


@kept_in_node
def stored_in(node: ast.AST) -> frozenset[str]:
    """Return the names that are set in this code."""
    return frozenset(one.id for one in all_in(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store))


@kept_in_node
def locals_of(node: ast.AST) -> frozenset[str]:
    """Return the names of this function's locals."""
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    shared = {name for one in all_in(node) if isinstance(one, (ast.Nonlocal, ast.Global)) for name in one.names}
    return (stored_in(node) | {one.arg for one in all_in(node.args) if isinstance(one, ast.arg)}) - shared
