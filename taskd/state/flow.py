"""Finds what a loop hands from step to step: places that its body sets, reads before it sets them anew, and uses.

`hidden = model(x, hidden)` is an example, and so are averages that are changed in place. If a step is done again, it
begins with what its first attempt has left there. A newcomer begins with what its set-up has left there. Statements are
followed in their order, also into the script's functions and methods that the body calls (reach.py). A value that is
only shown, or only summed up to be shown, does not count as used.

Conditions can be judged in two ways. The hopeful way assumes that inner loops are run, that one of many branches is
taken, that the same condition has the same result within a step, and that a function gets to its end. The other way
assumes none of this. What only the other way finds may be handed on or not.

Failure modes: something that every step sets before it reads it counts as handed on (a healthy job starts over), or
something that is handed on does not count (a repair goes wrong silently). It does NOT know any values.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from taskd.state.conditions import Conditions
from taskd.state.dealings import Dealt
from taskd.state.expressions import ITEM, Ends, Expressions, unused
from taskd.state.guards import Guards
from taskd.state.methods import changes, name_of
from taskd.state.nodes import all_in, locals_of, names_in, text_of
from taskd.state.places import Place, Places
from taskd.state.reach import LOCAL, Reach
from taskd.state.sources import SCOPES, Node
from taskd.state.statements import blocks_of, is_number, is_variable, keeps_numbers, pairs
from taskd.state.track import EFFECT, NOWHERE, Sink, Track, Way

_ENDS = frozenset({"exit", "_exit", "abort", "quit"})


class Flow:
    """Follows the statements of one loop body."""

    def __init__(self, reach: Reach, hopeful: bool, gives: Sink = EFFECT) -> None:
        """`gives`: where the value goes that the loop's function returns."""
        self.reach, self.hopeful, self.track, self._gives = reach, hopeful, Track(), gives
        self.values = Expressions(reach, self.track, hopeful, self._function)
        self.conditions = Conditions(self.values, lambda: self._returns[-1][0] if self._returns else gives)
        self._breaks: list[list[set[Place]]] = []  # for each inner loop: what is ready at each `break`
        self._returns: list[tuple[Sink, list[set[Place]]]] = []
        self._way: Way = ()
        self.counted = set[Place]()
        """Places other than variables that the loop counts and never sets in another way."""
        self.written = set[Place]()
        """Places that it sets or changes in place."""
        self.found = set[Place]()
        """Places that it finds already set when it begins, and whose values have an effect."""
        self._guards = Guards(self.values)
        self.guards = set[Place]()
        """Places that guard what it does only once."""
        self.computes = set[Place]()
        """Places that a step finds as another step has left them, and that have an effect in this function."""

    def loop(self, home: ast.AST | None, loop: ast.For | ast.AsyncFor | ast.While) -> None:
        """Follow its body: once to see what it sets, and once more to see what it reads before that. Then follow the
        rest of the function (`home`) to see what it does with what the loop leaves."""
        for _ in range(2):
            self.values.again()
            if not isinstance(loop, ast.While):
                self.values.store(loop.target)
            self._follow(loop.body)
        self.counted = {one for one in self.track.counted_apart() if LOCAL not in one.root and not is_variable(one)}
        self.written, self.guards = set(self.track.written), self._guards.found
        outer = {place for place in self.track.outer if LOCAL not in place.root}
        self.found = outer & self.track.leads()
        there, dealings = Places(outer), self.track.dealings
        self.track.dealt = Dealt(_outside(dealings.told(), there), _outside(dealings.asked(self.track.leads()), there))
        exposed = self._read_behind(home, loop) | self.track.exposed
        self.track.ready = set(self.track.written)
        for decides in _around(home, loop):
            self.values.read(decides, EFFECT)
        self._follow(_others(getattr(home, "body", []), loop))
        self.track.exposed = exposed
        self.computes = self.track.used()
        self.reach.forget()

    def _read_behind(self, home: ast.AST | None, loop: ast.For | ast.AsyncFor | ast.While) -> set[Place]:
        """Return the places that not every step sets, and that the code behind the loop reads: the best weights so far
        are an example. A newcomer has not done the step that has set them."""
        written, before = set(self.track.written), set(self.track.exposed)
        others = _others(getattr(home, "body", []), loop)
        self._follow(one for one in others if one.lineno > (loop.end_lineno or 0))
        found, self.track.exposed = self.track.exposed & written, before
        return found

    def whole(self, home: ast.Module | Node) -> None:
        """Follow a whole function."""
        for _ in range(2):
            self.values.again()
            self._follow(one for one in home.body if not isinstance(one, SCOPES))
        self.computes = self.track.used()
        self.reach.forget()

    def sets(self, loop: ast.For | ast.AsyncFor | ast.While) -> set[Place]:
        """Return the places that its body sets or changes in place."""
        self.values.partly = False
        self._follow(loop.body)
        self.reach.forget()
        return {place for place in self.track.written if LOCAL not in place.root}

    def keeps(self, home: ast.AST | None, loop: ast.For | ast.AsyncFor | ast.While) -> set[Place]:
        """Return the places where an earlier turn leaves a value that the body, or the code after the loop, uses."""
        self.values.partly = False
        for _ in range(2):
            self.values.again()
            self._follow(loop.body)
        others = _others(getattr(home, "body", []), loop)
        self._follow(one for one in others if one.lineno > (loop.end_lineno or 0))
        self.reach.forget()
        return {place for place in self.track.used() if LOCAL not in place.root}

    def _function(self, block: Sequence[ast.stmt], sink: Sink) -> Ends:
        """Follow the body of a called function. Return what is ready at its returns, and whether its end is never
        reached."""
        breaks, rests, self._breaks, self.conditions.rests = self._breaks, self.conditions.rests, [], []
        outer = self._guards.enter(block)
        ends = list[set[Place]]()
        self._returns.append((sink, ends))
        self._follow(block)
        self._returns.pop()
        self._breaks, self.conditions.rests = breaks, rests
        self._guards.leave(outer)
        return ends, _leaves(block)

    @property
    def handed_on(self) -> set[Place]:
        """All places that are handed on."""
        return {place for place in self.track.exposed if LOCAL not in place.root}

    @property
    def dealt(self) -> Dealt:
        """What the loop reaches by calls that are not followed. This takes time."""
        return self.track.dealt._replace(around=frozenset(self.track.dealings.asked(self.track.leads())))

    @property
    def used(self) -> set[Place]:
        """The places handed on that matter. Other code may read a place that it can reach, so such a place matters,
        too, unless it is a mere sum."""
        far = {one for one in self.track.exposed & self.track.altered if not self.reach.is_seen_whole(one)}
        return (self.computes | far) & self.handed_on

    # ---- statements -------------------------------------------------------------------------------------------

    def _follow(self, block: Iterable[ast.stmt]) -> None:
        rest = deque(block)
        self.conditions.rests.append(rest)
        while rest:
            self._statement(rest.popleft())
        self.conditions.rests.pop()

    def _follow_if(self, block: Sequence[ast.stmt]) -> None:
        """Follow a block that is run under a condition."""
        way, self._way = self._way, (*self._way, id(block))
        self._follow(block)
        self._way = way

    def _statement(self, statement: ast.stmt) -> None:
        track = self.track
        self.values.tells = [*unused(statement.value)] if isinstance(statement, ast.Expr) else []
        match statement:
            case ast.If():
                self._if(statement)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._inner_loop(statement)
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    self.values.entered = item.context_expr if item.optional_vars is not None else None
                    self.values.read(item.context_expr, EFFECT)
                    if item.optional_vars is not None:
                        self.values.store(item.optional_vars, item.context_expr)
                self._follow(statement.body)
            case ast.Try():
                self._try(statement)
            case ast.Match():
                self._match(statement)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assign(statement)
            case ast.Return():
                sink, ends = self._returns[-1] if self._returns else (self._gives, [])
                self.values.read(statement.value, sink)
                ends.append(set(track.ready))
            case ast.Break():
                for ends in self._breaks[-1:]:
                    ends.append(set(track.ready))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.values.name(statement.name)
                self.values.hidden.append(locals_of(statement))
                self._follow(statement.body)  # as if it were called at once
                self.values.hidden.pop()
            case ast.ClassDef():
                self.values.name(statement.name)
            case ast.Import() | ast.ImportFrom():
                for name in statement.names:
                    self.values.name((name.asname or name.name).split(".")[0])
            case ast.Expr(value=ast.Call() as call):
                quiet = self.values.shows(call) or changes(call)
                self.values.drop(call, NOWHERE if quiet else EFFECT)
            case ast.Delete():
                pass
            case _:
                for child in ast.iter_child_nodes(statement):
                    self.values.read(child, EFFECT)

    def _if(self, statement: ast.If) -> None:
        tests, blocks, last = [statement.test], [statement.body], statement.orelse
        while len(last) == 1 and isinstance(inner := last[0], ast.If):
            tests.append(inner.test)
            blocks.append(inner.body)
            last = inner.orelse
        sink = self.conditions.sink_of([*(one for block in blocks for one in block), *last])
        for test in tests:
            self.values.read(test, sink)
        for test, block in zip(tests, blocks, strict=True):
            self._guards.look_at(test, block)
        condition = text_of(statement.test)
        given = self.track.given(condition) if self.hopeful else set[Place]()
        before = set(self.track.ready)
        exhaustive = self.hopeful and len(blocks) > 1
        taken = self._either(blocks if exhaustive and not last else [*blocks, last], first=given)[0] - before
        names = names_in(statement.test)
        if len(blocks) == 1 and not last and not _leaves(blocks[0]) and not names & {one.base.text for one in taken}:
            self.track.gives(condition, names, taken)

    def _either(
        self, blocks: Sequence[Sequence[ast.stmt]], names: Sequence[set[str]] = (), first: Iterable[Place] = ()
    ) -> list[set[Place]]:
        """Follow blocks of which one is run. Return what is ready at the end of each. A block that leaves the loop says
        nothing about the code that follows."""
        track = self.track
        before, ends = set(track.ready), list[set[Place]]()
        for at, block in enumerate(blocks):
            turned = self.hopeful and bool(self._breaks)  # an inner loop has run the first block in an earlier turn
            track.ready = {*before, *(first if at == 0 else ends[-1] if turned else ())}
            for name in names[at] if names else ():
                self.values.name(name)
            self._follow_if(block)
            ends.append(track.ready)
        stay = [end for block, end in zip(blocks, ends, strict=True) if not _leaves(block)]
        track.ready = set.intersection(*stay) if stay else set.union(before, *ends)
        return ends

    def _match(self, statement: ast.Match) -> None:
        self.values.read(
            statement.subject, self.conditions.sink_of(one for case in statement.cases for one in case.body)
        )
        blocks = [case.body for case in statement.cases]
        names = [_captured(case.pattern) for case in statement.cases]
        last = statement.cases[-1]
        whole = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None and last.guard is None
        if whole or (self.hopeful and len(blocks) > 1):
            self._either(blocks, names)
        else:
            self._either([*blocks, []], [*names, set()])

    def _inner_loop(self, statement: ast.For | ast.AsyncFor | ast.While) -> None:
        track, endless = self.track, False
        if isinstance(statement, ast.While):
            endless = isinstance(statement.test, ast.Constant)
            self.values.read(statement.test, self.conditions.sink_of(statement.body))
        else:
            targets = [*self.values.targets(statement.target)]
            turns = isinstance(statement.iter, ast.Call) and name_of(statement.iter) == "range"
            self.values.read(statement.iter, self.conditions.sink_of(statement.body) if turns else tuple(targets))
            self.values.store(statement.target)
            if sources := [place.under(ITEM) for place in self.values.sources(statement.iter)]:
                track.aliases |= dict.fromkeys(targets, sources)
        before = set(track.ready)
        self._breaks.append([])
        self.conditions.rests.append(None)
        if isinstance(statement, ast.While):
            self._follow_if(statement.body)
        else:
            for _ in self.values.one_by_one(statement):
                self._follow(statement.body)
        breaks = self._breaks.pop()
        self.conditions.rests.pop()
        if endless:
            track.ready = set.intersection(*breaks) if breaks else before
        elif not self.hopeful or _leaves(statement.body):
            track.ready = before
        self._follow(statement.orelse)

    def _try(self, statement: ast.Try) -> None:
        track = self.track
        before = set(track.ready)
        self._follow([*statement.body, *statement.orelse])
        behind = track.ready
        for handler in statement.handlers:
            track.ready = set(before)
            if handler.name:
                self.values.name(handler.name)
            self._follow_if(handler.body)
            behind = behind if _leaves(handler.body) else behind & track.ready
        track.ready = behind
        self._follow(statement.finalbody)

    def _assign(self, statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        if isinstance(statement, ast.AugAssign):
            place, into = self.values.place(statement.target), self.values.sink(statement.target)
            if place is not None and into is not None:
                into = (*into, *self.track.meant(place))  # a tensor changes in place: `for mean in means: mean += x`
            self.values.read(statement.value, into)
            if isinstance(statement.target, ast.Subscript):
                self.values.read(statement.target.slice, into)
            if place is not None:
                self.track.reads(place, (place,))
                self.track.counts(place, self._way)
                self.track.changes(place, alters=not isinstance(statement.op, (ast.Add, ast.Sub)))
            return
        found = [*pairs(statement)]
        self._guards.sets(statement)
        for target, value in found:
            self.values.tells = [*unused(value)] if isinstance(target, ast.Name) and target.id == "_" else []
            self.values.read(value, self.values.sink(target))
        for target, value in found:
            place = self.values.place(target)
            if place is not None and not _sums(value) and any(map(place.touches, self.values.places_in(value))):
                self.track.altered.add(place)
            if place is not None:
                self._set(place, value)
            self.values.store(target, value)
            part = self.values.place(value)
            if isinstance(target, ast.Name) and part is not None and part.path and (name := self.values.place(target)):
                self.track.aliases[name] = [part]

    def _set(self, place: Place, value: ast.expr) -> None:
        """Note whether an assignment of this value counts the place, or sets it to something else."""
        parts = [part for part in all_in(value) if isinstance(part, ast.expr) and place in self.values.places_in(part)]
        if parts and keeps_numbers(value, parts):
            self.track.counts(place, self._way)
        elif not is_number(value):
            self.track.replaces(place, self._way)


def _outside(places: set[Place], found: Places) -> frozenset[Place]:
    """Return those of these places that are, or have, something that the loop finds already set."""
    return frozenset(place for place in places if LOCAL not in place.root and found.touched_by(place))


def _others(block: Sequence[ast.stmt], loop: ast.stmt) -> Iterator[ast.stmt]:
    """Return the statements of the block, without this loop and without the functions and classes in it."""
    for statement in block:
        if statement is loop or isinstance(statement, SCOPES):
            continue
        if not any(part is loop for part in all_in(statement)):
            yield statement
            continue
        for inner, _ in blocks_of(statement):
            yield from _others(inner, loop)


def _around(home: ast.AST | None, loop: ast.stmt) -> Iterator[ast.expr]:
    """Return what decides how often this loop is run: the conditions and ranges of the statements around it."""
    for node in all_in(home) if home is not None else ():
        if not isinstance(node, (ast.While, ast.For, ast.AsyncFor)) or node is loop:
            continue
        if any(part is loop for part in all_in(node)):
            yield node.test if isinstance(node, ast.While) else node.iter


def _leaves(block: Sequence[ast.stmt]) -> bool:
    """Whether the code after this block is never reached."""
    match block[-1] if block else None:
        case ast.Continue() | ast.Break() | ast.Return() | ast.Raise():
            return True
        case ast.If(body=body, orelse=orelse):
            return _leaves(body) and _leaves(orelse)
        case ast.With(body=body):
            return _leaves(body)
        case ast.Assert(test=ast.Constant(value=False)):
            return True
        case ast.Expr(value=ast.Call() as call):
            return name_of(call) in _ENDS
    return False


def _sums(value: ast.expr) -> bool:
    """Whether this adds and subtracts only, so that it may be a mere sum, or has no operator at all."""
    operators = [node.op for node in all_in(value) if isinstance(node, ast.BinOp)]
    return all(isinstance(one, (ast.Add, ast.Sub)) for one in operators)


def _captured(pattern: ast.pattern) -> set[str]:
    names = (getattr(node, "name", None) or getattr(node, "rest", None) for node in ast.walk(pattern))
    return {name for name in names if isinstance(name, str)}
