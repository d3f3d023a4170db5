"""What a loop hands from one step to the next: read before it is set anew, set by its body, and used for something.

`hidden = model(x, hidden)` is one, and so are averages that are changed in place. A step that is done again begins with
what its first attempt has left there, and a newcomer with what its set-up has. Statements are followed in their order,
through the script's functions and methods that the body calls (reach.py). What is only shown, or only summed up to be
shown, is used for nothing.

Of what depends on conditions there are two opinions. The hopeful one: loops inside are run, one of many branches is
taken, what was asked before is answered alike in the same step, and a function gets to its end. The other one believes
none of this; what only that finds may be handed on or not.

Failure modes: something that every step sets before it is read counts as handed on (a healthy job starts over), or what
is handed on does not (a repair goes wrong silently). It knows no values.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from taskd.state.places import ANY, Place
from taskd.state.reach import LOCAL, Called, Names, Reach, place_of
from taskd.state.sources import SCOPES
from taskd.state.statements import pairs
from taskd.state.track import EFFECT, NOWHERE, Sink, Track

_SHOWS = (
    *("print", "log", "info", "debug", "warn", "error", "write", "show", "display", "report", "plot"),
    *("add_scalar", "add_image", "add_hist", "add_text", "set_post", "set_desc"),
)
"""How functions begin that only show what they are given."""
_KEEPS = frozenset({"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "put", "push"})
"""Methods that put what they are given into their object."""
_TAKES = frozenset({"pop", "popleft", "popitem", "remove", "discard", "sort", "reverse"})
_EMPTIES = frozenset({"clear", "zero_", "fill_", "copy_", "normal_", "uniform_", "random_", "bernoulli_", "set_"})
"""Methods after which nothing is left of what was there."""
_ADDS = frozenset({"add_", "sub_", "index_add_", "scatter_add_"})
_HARMLESS = frozenset({"requires_grad_", "share_memory_", "clip_grad_norm_", "clip_grad_value_"})
_ENDS = frozenset({"exit", "_exit", "abort", "quit"})
_FOLLOWED = 200
"""Calls: functions that call each other would be followed for ever."""
_DEPTH = 8
_ITEM = Place("x[...]", "x", ((False, ANY),))
_OWN_PATH = 2
"""Further inside of an object is what belongs to others: a group of an optimizer."""


@dataclass(slots=True)
class Flow:
    """Through one body."""

    reach: Reach
    hopeful: bool
    track: Track = field(default_factory=Track)
    _names: Names = field(default_factory=Names)
    _hidden: list[set[str]] = field(default_factory=list)
    """Names of comprehensions, and of functions that stand in the body."""
    _breaks: list[list[set[Place]]] = field(default_factory=list)
    _returns: list[tuple[Sink, list[set[Place]]]] = field(default_factory=list)
    _within: list[object] = field(default_factory=list)
    _followed: int = 0

    def loop(self, home: ast.AST | None, loop: ast.For | ast.AsyncFor | ast.While) -> None:
        """Follow its body: once to see what it sets, and once to see what it reads before. Then see what else the
        function does, whose `home` this is, with what the loop leaves."""
        for _ in range(2):
            self.track.again()
            self._followed = 0
            if not isinstance(loop, ast.While):
                self._store(loop.target)
            self._follow(loop.body)
        exposed, self.track.ready = set(self.track.exposed), set(self.track.written)
        self._follow(_others(getattr(home, "body", []), loop))
        self.track.exposed = exposed

    @property
    def handed_on(self) -> set[Place]:
        """All of it."""
        return {place for place in self.track.exposed if LOCAL not in place.root}

    @property
    def used(self) -> set[Place]:
        """Of this, what matters. What others have, too, may be read anywhere, so it matters unless it is a mere sum."""
        far = {one for one in self.track.exposed & self.track.altered if not self.reach.is_seen_whole(one)}
        return (self.track.used() | far) & self.handed_on

    # ---- statements -------------------------------------------------------------------------------------------

    def _follow(self, block: Iterable[ast.stmt]) -> None:
        for statement in block:
            self._statement(statement)

    def _statement(self, statement: ast.stmt) -> None:
        track = self.track
        match statement:
            case ast.If():
                self._if(statement)
            case ast.For() | ast.AsyncFor() | ast.While():
                self._inner_loop(statement)
            case ast.With() | ast.AsyncWith():
                for item in statement.items:
                    self._read(item.context_expr, EFFECT)
                    if item.optional_vars is not None:
                        self._store(item.optional_vars)
                self._follow(statement.body)
            case ast.Try():
                self._try(statement)
            case ast.Match():
                self._match(statement)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                self._assign(statement)
            case ast.Return():
                sink, ends = self._returns[-1] if self._returns else (EFFECT, [])
                self._read(statement.value, sink)
                ends.append(set(track.ready))
            case ast.Break():
                for ends in self._breaks[-1:]:
                    ends.append(set(track.ready))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._name(statement.name)
                self._hidden.append(_locals_of(statement))
                self._follow(statement.body)  # as if it were called at once
                self._hidden.pop()
            case ast.ClassDef():
                self._name(statement.name)
            case ast.Import() | ast.ImportFrom():
                for name in statement.names:
                    self._name((name.asname or name.name).split(".")[0])
            case ast.Expr(value=ast.Call() as call):
                shows = _shows(call) and self.reach.called(call.func, self._names) is None
                self._read(call, NOWHERE if shows or _changes(call) else EFFECT)
            case ast.Delete():
                pass
            case _:
                for child in ast.iter_child_nodes(statement):
                    self._read(child, EFFECT)

    def _if(self, statement: ast.If) -> None:
        tests, blocks, last = [statement.test], [statement.body], statement.orelse
        while len(last) == 1 and isinstance(inner := last[0], ast.If):
            tests.append(inner.test)
            blocks.append(inner.body)
            last = inner.orelse
        sink = self._sink_of([*(one for block in blocks for one in block), *last])
        for test in tests:
            self._read(test, sink)
        condition = ast.dump(statement.test)
        given = self.track.given(condition) if self.hopeful else set[Place]()
        before = set(self.track.ready)
        exhaustive = self.hopeful and len(blocks) > 1
        taken = self._either(blocks if exhaustive and not last else [*blocks, last], first=given)[0] - before
        names = {node.id for node in ast.walk(statement.test) if isinstance(node, ast.Name)}
        if len(blocks) == 1 and not last and not _leaves(blocks[0]) and not names & {one.base.text for one in taken}:
            self.track.gives(condition, names, taken)

    def _either(
        self, blocks: Sequence[Sequence[ast.stmt]], names: Sequence[set[str]] = (), first: Iterable[Place] = ()
    ) -> list[set[Place]]:
        """One of these is run; what is ready at the end of each. What one of them only leaves the loop with says
        nothing of what follows."""
        track = self.track
        before, ends = set(track.ready), list[set[Place]]()
        for at, block in enumerate(blocks):
            turned = self.hopeful and bool(self._breaks)  # a loop inside has taken the first of them before
            track.ready = {*before, *(first if at == 0 else ends[-1] if turned else ())}
            for name in names[at] if names else ():
                self._name(name)
            self._follow(block)
            ends.append(track.ready)
        stay = [end for block, end in zip(blocks, ends, strict=True) if not _leaves(block)]
        track.ready = set.intersection(*stay) if stay else set.union(before, *ends)
        return ends

    def _match(self, statement: ast.Match) -> None:
        self._read(statement.subject, self._sink_of(one for case in statement.cases for one in case.body))
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
            self._read(statement.test, self._sink_of(statement.body))
        else:
            targets = [*self._targets(statement.target)]
            self._read(statement.iter, tuple(targets))
            self._store(statement.target)
            if sources := [place.under(_ITEM) for place in self._sources(statement.iter)]:
                track.aliases |= dict.fromkeys(targets, sources)
        before = set(track.ready)
        self._breaks.append([])
        self._follow(statement.body)
        breaks = self._breaks.pop()
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
                self._name(handler.name)
            self._follow(handler.body)
            behind = behind if _leaves(handler.body) else behind & track.ready
        track.ready = behind
        self._follow(statement.finalbody)

    def _assign(self, statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> None:
        if isinstance(statement, ast.AugAssign):
            self._read(statement.value, self._sink(statement.target))
            if isinstance(statement.target, ast.Subscript):
                self._read(statement.target.slice, self._sink(statement.target))
            if (place := self._place(statement.target)) is not None:
                self.track.reads(place, (place,))
                self.track.changes(place, alters=not isinstance(statement.op, (ast.Add, ast.Sub)))
            return
        found = [*pairs(statement)]
        for target, value in found:
            self._read(value, self._sink(target))
        for target, value in found:
            place = self._place(target)
            if place is not None and not _sums(value) and any(map(place.touches, self._places_in(value))):
                self.track.altered.add(place)
            self._store(target)
            part = self._place(value)
            if isinstance(target, ast.Name) and part is not None and part.path and (name := self._place(target)):
                self.track.aliases[name] = [part]

    # ---- what is set ------------------------------------------------------------------------------------------

    def _place(self, node: ast.AST | None) -> Place | None:
        found = None if node is None else place_of(node)
        hidden = found is None or any(found.root in names for names in self._hidden)
        return None if hidden else self._names.place(found)

    def _name(self, name: str) -> None:
        """It stands for something new."""
        if (place := self._names.place(Place(name, name))) is not None:
            self.track.sets(place)

    def _targets(self, node: ast.expr) -> Iterator[Place]:
        """The places in what is assigned to."""
        if isinstance(node, (ast.Tuple, ast.List)):
            for part in node.elts:
                yield from self._targets(part)
        elif isinstance(node, ast.Starred):
            yield from self._targets(node.value)
        elif (place := self._place(node)) is not None:
            yield place

    def _places_in(self, node: ast.expr) -> Iterator[Place]:
        for part in ast.walk(node):
            if (place := self._place(part)) is not None:
                yield place

    def _store(self, target: ast.expr) -> None:
        """It gets a new value."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self._store(part)
        elif isinstance(target, ast.Starred):
            self._store(target.value)
        else:
            if isinstance(target, ast.Subscript):
                self._read(target.slice, self._sink(target))
            if (place := self._place(target)) is not None:
                self.track.sets(place)

    def _sink(self, target: ast.expr) -> Sink:
        """Where a value goes that is assigned to this."""
        places = [*self._targets(target)]
        for place in places:
            length = len(place.path) - bool(place.module) - (place.root == "self")
            if (place.path and place.base in self.track.aliases) or length >= _OWN_PATH:
                return EFFECT
        return tuple(places) if places else EFFECT

    def _sink_of(self, block: Iterable[ast.stmt]) -> Sink:
        """Where a value goes that decides whether this is run."""
        places = list[Place]()
        for node in (part for statement in block for part in _run(statement)):
            sink = self._sink_of_one(node)
            if sink is None:
                return EFFECT
            places += sink
        return tuple(places)

    def _sink_of_one(self, node: ast.stmt) -> Sink:
        match node:
            case ast.Assign() | ast.AnnAssign():
                sinks = [self._sink(target) for target, _ in pairs(node)]
            case ast.AugAssign():
                sinks = [self._sink(node.target)]
            case ast.Expr(value=ast.Call() as call):
                owner = self._place(call.func.value) if isinstance(call.func, ast.Attribute) else None
                kept = owner is not None and _name_of(call) in _KEEPS | _EMPTIES
                sinks = [NOWHERE if _shows(call) else (owner,) if kept and owner is not None else EFFECT]
            case ast.Expr(value=ast.Constant()) | ast.Continue() | ast.Pass():
                sinks = [NOWHERE]
            case ast.If() | ast.For() | ast.While() | ast.With() | ast.Try() | ast.Match() | ast.Import():
                sinks = [NOWHERE]  # what is in it comes by itself
            case _:
                sinks = [EFFECT]
        return EFFECT if EFFECT in sinks else tuple(place for sink in sinks for place in sink or ())

    def _sources(self, node: ast.expr) -> Iterator[Place]:
        """The places that a value is made from."""
        if (place := self._place(node)) is not None:
            yield place
        elif isinstance(node, ast.Call):
            for part in ([node.func.value] if isinstance(node.func, ast.Attribute) else []) + node.args:
                yield from self._sources(part)

    # ---- expressions ------------------------------------------------------------------------------------------

    def _read(self, node: ast.AST | None, sink: Sink) -> None:
        """All that is read for this, whose value goes there."""
        match node:
            case None:
                pass
            case ast.Call():
                self._call(node, sink)
            case ast.NamedExpr():
                self._read(node.value, EFFECT if sink is None else (*sink, *self._targets(node.target)))
                self._store(node.target)
            case ast.Lambda():
                self._hidden.append({one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)})
                self._read(node.body, sink)
                self._hidden.pop()
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node, sink)
            case ast.Name() | ast.Attribute() | ast.Subscript() if place_of(node) is not None:
                if (place := self._place(node)) is not None:
                    self.track.reads(place, sink)
                for part in ast.walk(node):
                    if isinstance(part, ast.Subscript):
                        self._read(part.slice, sink)
            case _:
                for child in ast.iter_child_nodes(node):
                    self._read(child, sink)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, sink: Sink) -> None:
        names = set[str]()
        for part in node.generators:
            self._read(part.iter, sink)
            names |= {one.id for one in ast.walk(part.target) if isinstance(one, ast.Name)}
            self._hidden.append(names)
            for test in part.ifs:
                self._read(test, sink)
            self._hidden.pop()
        self._hidden.append(names)
        for value in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self._read(value, sink)
        self._hidden.pop()

    def _call(self, call: ast.Call, sink: Sink) -> None:
        if _changes(call):
            self._change(call, sink)
        elif (called := self.reach.called(call.func, self._names)) is None or not self._enter(called, call, sink):
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            place, name = self._place(owner), _name_of(call)
            into: Sink = sink
            if place is not None and name in _KEEPS:
                into = (place,)
            elif name.endswith("_") and not name.endswith("__"):
                into = EFFECT
            self._read(call.func, NOWHERE if name in _KEEPS and not sink else sink)
            for part in (*call.args, *call.keywords):
                self._read(part, into)
            if place is not None and name in _KEEPS | _TAKES:
                self.track.changes(place)

    def _change(self, call: ast.Call, sink: Sink) -> None:
        """`x.mul_(0.9).add_(y)`, `torch._foreach_mul_(x, 0.9)`, `x.zero_()`."""
        calls, at = [call], call.func
        while isinstance(at, ast.Attribute) and isinstance(at.value, ast.Call):
            calls.append(at.value)
            at = at.value.func
        names = {_name_of(one) for one in calls}
        owner: ast.expr | None = at.value if isinstance(at, ast.Attribute) else None
        if self.reach.is_module(self._place(owner)) or _name_of(call).startswith("_foreach_"):
            owner = call.args[0] if call.args else None
        place = self._place(owner)
        sources = [place] if place is not None else [*self._sources(owner)] if owner is not None else []
        for one in calls:
            for part in (*one.args, *one.keywords):
                self._read(part, tuple(sources) or EFFECT)
        for source in sources:
            if names <= _EMPTIES and place is not None:
                self.track.changes(source)
                self.track.sets(source)
            else:
                self.track.reads(source, (source,))
                self.track.changes(source, alters=not names <= _ADDS)
            if sink != NOWHERE:
                self.track.reads(source, sink)

    def _enter(self, called: Called, call: ast.Call, sink: Sink) -> bool:
        """Follow a function of the script's own; False: not this time."""
        stored = _stored(called.node)
        given = called.arguments(call, self._names)
        bound = {name: place for name, value in given if (place := self._place(value)) and name not in stored}
        if called.owner is not None:
            bound[called.code.co_varnames[0]] = called.owner
        key = called.code, frozenset(bound.items())
        if key in self._within or len(self._within) >= _DEPTH or self._followed >= _FOLLOWED:
            return False
        self._followed += 1
        names, local = self.reach.inside(called, bound), Names.local(called.code.co_name)
        for name, value in given:
            if name not in bound:
                self._read(value, (Place(name, f"{local}{name}"),))
        for part in call.args[len(given) :]:
            self._read(part, EFFECT)
        self.track.ready |= {Place(name, f"{local}{name}") for name in names.own - bound.keys() if name not in stored}
        outer = self._names, self._hidden, self._breaks
        self._names, self._hidden, self._breaks = names, [], []
        self._within.append(key)
        ends = list[set[Place]]()
        self._returns.append((sink, ends))
        self._follow(called.node.body)
        self._returns.pop()
        self._within.pop()
        self._names, self._hidden, self._breaks = outer
        if ends and _leaves(called.node.body):
            self.track.ready = ends[-1] if self.hopeful else set.intersection(*ends)
        elif ends and not self.hopeful:
            self.track.ready = set.intersection(self.track.ready, *ends)
        self.track.ready = {place for place in self.track.ready if not place.root.startswith(local)}
        return True


def _others(block: Sequence[ast.stmt], loop: ast.stmt) -> Iterator[ast.stmt]:
    """All of it but this loop, and the functions that stand in it."""
    for statement in block:
        if statement is loop or isinstance(statement, SCOPES):
            continue
        if not any(part is loop for part in ast.walk(statement)):
            yield statement
            continue
        for name in ("body", "orelse", "finalbody"):
            yield from _others(getattr(statement, name, []), loop)
        for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
            yield from _others(part.body, loop)


def _run(statement: ast.stmt) -> Iterator[ast.stmt]:
    """This, and the statements in it, but not those of functions."""
    yield statement
    if not isinstance(statement, SCOPES):
        for child in ast.iter_child_nodes(statement):
            for inner in [child] if isinstance(child, ast.stmt) else getattr(child, "body", []):
                if isinstance(inner, ast.stmt):
                    yield from _run(inner)


def _leaves(block: Sequence[ast.stmt]) -> bool:
    """Whether what follows it is not reached."""
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
            return _name_of(call) in _ENDS
    return False


def _name_of(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _shows(call: ast.Call) -> bool:
    return _name_of(call).lstrip("_").startswith(_SHOWS)


def _changes(call: ast.Call) -> bool:
    """Whether this changes something in place."""
    name = _name_of(call)
    in_place = name.endswith("_") and not name.endswith("__") and name not in _HARMLESS
    return isinstance(call.func, ast.Attribute) and (in_place or name == "clear")


def _sums(value: ast.expr) -> bool:
    """Whether this is reckoned by nothing but adding, and may be a mere sum; or is no reckoning."""
    operators = [node.op for node in ast.walk(value) if isinstance(node, ast.BinOp)]
    return all(isinstance(one, (ast.Add, ast.Sub)) for one in operators)


def _captured(pattern: ast.pattern) -> set[str]:
    names = (getattr(node, "name", None) or getattr(node, "rest", None) for node in ast.walk(pattern))
    return {name for name in names if isinstance(name, str)}


def _stored(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}


def _locals_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    shared = {name for one in ast.walk(node) if isinstance(one, (ast.Nonlocal, ast.Global)) for name in one.names}
    return (_stored(node) | {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}) - shared
