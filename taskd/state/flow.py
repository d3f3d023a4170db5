"""Which variables a loop hands from one step to the next: read before they are set anew, and set by its body.

`hidden = model(x, hidden)` is one, and so is `running = 0.9 * running + 0.1 * loss`. A step that is done again begins
with what its first attempt has left there, and a newcomer with what its set-up has. Statements are followed in their
order, through functions that the body calls; a branch counts as taken and as not taken.

Failure modes: a tensor that is set in every step before it is read counts as handed on (a healthy job would start
over), one that is handed on does not. Whatever is not understood here is read before it is set. It does NOT follow
what objects do among themselves, and knows no values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from taskd.state.statements import HERE, MODULE, Variable, moved_by, parts_of, set_by, variable_of


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """One that the body calls."""

    body: Sequence[ast.stmt]
    own: frozenset[str]
    """Names that nobody else sees."""
    shared: frozenset[str]
    """Names of the function that the loop stands in."""

    def seen(self, variables: Iterable[Variable]) -> set[Variable]:
        """Those among them that it shares with its caller."""
        return {one for one in variables if one[0] != HERE or one[1] not in self.own}


_LEAVES = (ast.Continue, ast.Break, ast.Return, ast.Raise)
_SHOWS = frozenset({"print", "info", "debug", "warning", "log", "write", "append", "add_scalar", "set_postfix"})
"""Functions that only show what they are given, or put it aside."""


@dataclass(slots=True)
class Flow:
    """Through one body."""

    called: Callable[[Variable], Function | None]
    """What a name, or a method of `self`, stands for."""
    names: frozenset[str]
    """Of this function; others are the module's."""
    exposed: set[Variable] = field(default_factory=set)
    """Read before they were surely set."""
    used: set[Variable] = field(default_factory=set)
    """Read anywhere, for something else than to be moved or shown."""
    written: set[Variable] = field(default_factory=set)
    _within: list[Function] = field(default_factory=list)
    _returns: list[set[Variable]] = field(default_factory=list)
    """What was surely set where a called function may end before its last line."""

    @property
    def handed_on(self) -> set[Variable]:
        """From one step to the next."""
        return self.exposed & self.written

    def targets(self, loop: ast.stmt) -> set[Variable]:
        """What each turn of the loop begins with."""
        return self._set(loop) if isinstance(loop, (ast.For, ast.AsyncFor)) else set()

    def follow(self, block: Iterable[ast.stmt], ready: set[Variable]) -> set[Variable]:
        """These statements; `ready` was surely set before. What is surely set behind them."""
        for statement in block:
            ready = self._statement(statement, ready)
        return ready

    def _statement(self, statement: ast.stmt, ready: set[Variable]) -> set[Variable]:
        ready = self._read(statement, ready)
        if isinstance(statement, ast.If):
            return self._either([statement.body, statement.orelse], ready)
        if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            inner = ready | self._set(statement)
            self.follow(statement.body, set(inner))
            self.follow(statement.orelse, set(ready))
            return ready
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            return self.follow(statement.body, ready | self._set(statement))
        if isinstance(statement, ast.Try):
            behind = self.follow(statement.orelse, self.follow(statement.body, set(ready)))
            for handler in statement.handlers:
                ended = self.follow(handler.body, set(ready))
                behind = behind if _leaves(handler.body) else behind & ended
            return self.follow(statement.finalbody, behind)
        if isinstance(statement, ast.Match):
            return self._either([*(case.body for case in statement.cases), []], ready)
        if isinstance(statement, ast.Return):
            self._returns.append(ready)
        return ready if isinstance(statement, ast.Delete) else ready | self._set(statement)

    def _either(self, blocks: Sequence[Sequence[ast.stmt]], ready: set[Variable]) -> set[Variable]:
        """One of these is run. What one of them only leaves the loop with says nothing of what follows."""
        ends = [(block, self.follow(block, set(ready))) for block in blocks]
        stay = [end for block, end in ends if not _leaves(block)]
        return set.intersection(*stay) if stay else set.union(ready, *(end for _, end in ends))

    def _set(self, statement: ast.stmt) -> set[Variable]:
        found = self._home(set_by(statement))
        self.written |= found
        return found

    def _home(self, variables: Iterable[Variable]) -> set[Variable]:
        return {
            (MODULE, name) if owner == HERE and name not in self.names else (owner, name) for owner, name in variables
        }

    def _read(self, statement: ast.stmt, ready: set[Variable]) -> set[Variable]:
        """What a statement reads by itself, and what the functions do that it calls."""
        moved, shows = self._home(moved_by(statement)), _only_shows(statement)
        self.exposed |= moved - ready
        for node in parts_of(statement):
            if isinstance(node, ast.Call) and (function := variable_of(node.func)) is not None:
                ready = self._call(self.called(function), ready)
            one = variable_of(node) if isinstance(getattr(node, "ctx", None), ast.Load) else None
            if one is not None and not shows:
                found = self._home([one])
                self.exposed |= found - ready
                self.used |= found - moved
        return ready

    def _call(self, function: Function | None, ready: set[Variable]) -> set[Variable]:
        """It reads and sets what is not its own."""
        if function is None or function in self._within:
            return ready
        inner = Flow(self.called, function.own | function.shared, _within=[*self._within, function])
        ended = inner.follow(function.body, function.seen(ready))
        self.exposed |= function.seen(inner.exposed)
        self.used |= function.seen(inner.used)
        self.written |= function.seen(inner.written)
        return ready | function.seen(set.intersection(ended, *inner._returns))


def _leaves(block: Sequence[ast.stmt]) -> bool:
    return bool(block) and isinstance(block[-1], _LEAVES)


def _only_shows(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    function = statement.value.func
    return (getattr(function, "id", None) or getattr(function, "attr", None)) in _SHOWS
