"""Finds what the expressions of a loop read and change: the places in them, and where their values go.

A call of a function of the script is followed into it, with its parameters standing for their arguments (reach.py). Of
any other call, only its reads are known. The notes are kept in a track (track.py). This module does NOT know
statements: flow.py follows the body of a function, as it follows the loop's body.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import replace
from types import CodeType

from taskd.state.methods import ADDS, EDITS, EMPTIES, GATHERS, KEEPS, MEETS, TAKES, changes, name_of, saves, shows
from taskd.state.nodes import all_in, names_in, stored_in
from taskd.state.places import ANY, Place
from taskd.state.reach import Called, Names, Reach, named_in, place_of
from taskd.state.track import EFFECT, NOWHERE, Sink, Track

_FOLLOWED = 200
"""At most this many calls are followed: functions that call each other would be followed for ever."""
_DEPTH = 8
ITEM = Place("x[...]", "x", ((False, ANY),))
ASKED = Place("", "<asked>")
"""Stands for the results of the calls that are asked for."""
_GIVEN = Place("", "<given>")
"""Stands for what a function returns of which only that matters."""
_OWN_PATH = 2
"""A longer path inside an object leads to parts that belong to others, such as a group of an optimizer."""


Ends = tuple[list[set[Place]], bool]
"""What is ready at each return of a function, and whether its end is never reached."""


class Expressions:
    """The expressions of one loop."""

    def __init__(
        self, reach: Reach, track: Track, hopeful: bool, follow: Callable[[Sequence[ast.stmt], Sink], Ends]
    ) -> None:
        """`follow` follows the statements of a function. Its second argument says where the function's value goes."""
        self.reach, self.track, self._hopeful, self._follow = reach, track, hopeful, follow
        self.partly = True
        """Whether it counts that a change of a part leaves the rest."""
        self.asked = frozenset[ast.Call]()
        """Calls whose results are followed, wherever they go."""
        self.awaited: CodeType | None = None
        """A function of which matters what leaves it."""
        self.met: list[Names] = []
        """Its names in each of its calls."""
        self._dropped: ast.Call | None = None
        """A call whose result nobody uses."""
        self.tells: list[ast.Call] = []
        """Calls whose results nobody uses, and those that have made their objects."""
        self.entered: ast.expr | None = None
        """What a `with` gives a name to."""
        self.hidden: list[Set[str]] = []
        """Names that belong to comprehensions, and to functions defined in the body."""
        self._names = Names(code=reach.code)
        self._within: list[object] = []
        self._followed = 0

    def again(self) -> None:
        """Begin again at the first statement."""
        self.track.again()
        self._followed = 0

    def is_own(self, node: ast.AST) -> bool:
        """Whether this calls a function of the script."""
        return isinstance(node, ast.Call) and self.reach.called(node.func, self._names) is not None

    def shows(self, call: ast.Call) -> bool:
        """Whether this call only shows its arguments."""
        return shows(call) and self.reach.called(call.func, self._names) is None

    def place(self, node: ast.AST | None) -> Place | None:
        found = None if node is None else place_of(node)
        hidden = found is None or any(found.root in names for names in self.hidden)
        place = None if hidden else self._names.place(found)
        return place if place is None or not place.path else self.reach.behind_properties(place)

    def one_by_one(self, loop: ast.For | ast.AsyncFor) -> Iterator[None]:
        """Yield once for each of the few objects that an inner loop goes over. Meanwhile the loop's variable stands for
        that object. Yield once if the loop goes over something else."""
        name, source = _each_of(loop)
        outer = self._names
        items = self.reach.items(self.place(source)) if name else []
        for item in items:
            self._names = replace(outer, bound={**outer.bound, name: item})
            yield
        self._names = outer
        if not items:
            yield

    def name(self, name: str) -> None:
        """This name is set to something new."""
        if (place := self._names.place(Place(name, name))) is not None:
            self.track.sets(place)

    def targets(self, node: ast.expr) -> Iterator[Place]:
        """Return the places in the target of an assignment."""
        if isinstance(node, (ast.Tuple, ast.List)):
            for part in node.elts:
                yield from self.targets(part)
        elif isinstance(node, ast.Starred):
            yield from self.targets(node.value)
        elif (place := self.place(node)) is not None:
            yield place

    def places_in(self, node: ast.expr) -> Iterator[Place]:
        yield from filter(None, map(self.place, named_in(node)))

    def store(self, target: ast.expr, value: ast.expr | None = None) -> None:
        """This target gets a new value: this one, or a part of it, if it is known."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for part in target.elts:
                self.store(part, value)
        elif isinstance(target, ast.Starred):
            self.store(target.value, value)
        else:
            place = self.place(target)
            if isinstance(target, ast.Subscript):
                self.read(target.slice, self.sink(target))
                if self.partly and place is not None and not place.is_exact and not _is_whole(target.slice):
                    self.track.reads(place, (place,))  # the other items stay
            if place is not None:
                self.track.sets(place)
                sources = filter(None, map(self.place, _made_of(value)))
                self.track.dealings.is_made(place, sources, isinstance(value, ast.Call | ast.Await))

    def sink(self, target: ast.expr) -> Sink:
        """Return the sink of a value that is assigned to this target."""
        places = [*self.targets(target)]
        for place in places:
            alias = place.path and place.base in self.track.aliases
            if alias or _belongs_to_others(place) or self.reach.is_of_a_library(place):
                return EFFECT
        return tuple(places) if places else EFFECT

    def _into(self, places: Sequence[Place]) -> Sink:
        """Return the sink of a value that is written into these in place. It includes what they are a part of."""
        found = dict.fromkeys(places)
        for place in places:
            found |= dict.fromkeys(self.track.meant(place))
        deep = any(map(_belongs_to_others, found.keys() - {*places})) or any(map(self.reach.is_of_a_library, found))
        return EFFECT if deep or not found else tuple(found)

    def sources(self, node: ast.expr) -> Iterator[Place]:
        """Return the places from which a value is made."""
        if (place := self.place(node)) is not None:
            yield place
        elif isinstance(node, ast.Call):
            for part in ([node.func.value] if isinstance(node.func, ast.Attribute) else []) + node.args:
                yield from self.sources(part)

    def read(self, node: ast.AST | None, sink: Sink) -> None:
        """Note all reads of this expression, whose value goes to this sink."""
        match node:
            case None:
                pass
            case ast.Call():
                self._call(node, sink)
            case ast.NamedExpr():
                self.read(node.value, EFFECT if sink is None else (*sink, *self.targets(node.target)))
                self.store(node.target)
            case ast.Lambda():
                self.hidden.append({one.arg for one in all_in(node.args) if isinstance(one, ast.arg)})
                self.read(node.body, sink)
                self.hidden.pop()
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self._comprehension(node, sink)
            case ast.Name() | ast.Attribute() | ast.Subscript() if place_of(node) is not None:
                if (place := self.place(node)) is not None:
                    self.track.reads(place, sink)
                    for getter, kept in self.reach.computed(place):
                        self._enter(getter, ast.Call(node, [], []), sink)
                        if kept is not None:
                            self.track.changes(kept)
                for part in all_in(node):
                    if isinstance(part, ast.Subscript):
                        self.read(part.slice, sink)
            case _:
                for child in ast.iter_child_nodes(node):
                    self.read(child, sink)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, sink: Sink) -> None:
        names = set[str]()
        for part in node.generators:
            self.read(part.iter, sink)
            names |= names_in(part.target)
            self.hidden.append(names)
            for test in part.ifs:
                self.read(test, sink)
            self.hidden.pop()
        self.hidden.append(names)
        for value in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.read(value, sink)
        self.hidden.pop()

    def drop(self, call: ast.Call, sink: Sink) -> None:
        """Note all reads of a call whose result nobody uses."""
        self._dropped = call
        self.read(call, sink)

    def _call(self, call: ast.Call, sink: Sink) -> None:
        result = NOWHERE if call is self._dropped else sink
        if call in self.asked:
            self.track.reads(ASKED, result)
        if not self.is_own(call) and call is not self.entered:
            tells = any(call is one for one in self.tells)
            reached = [filter(None, map(self.place, nodes)) for nodes in _dealt_with(call, tells)]
            function, given = (
                [one for place in every for one in (place, *self.track.meant(place))] for every in reached
            )
            if tells:
                self.track.dealings.tells(function, given, name_of(call) in EDITS)
            elif sink != NOWHERE:
                self.track.dealings.asks((*function, *given), sink)
        if changes(call):
            self._change(call, sink)
        elif (called := self.reach.called(call.func, self._names)) is None or not self._enter(called, call, result):
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            place, name = self.place(owner), name_of(call)
            into: Sink = sink
            if place is not None and name in KEEPS:
                into = EFFECT if self.reach.is_of_a_library(place) else (place,)
            elif name in MEETS and self.reach.is_collective(call.func, self._names):
                into = self._of_collective(call, result)
            elif name.endswith("_") and not name.endswith("__"):
                into = EFFECT
            self.read(call.func, NOWHERE if name in KEEPS and not sink else sink)
            for part in (*call.args, *call.keywords):
                self.read(part, into)
            if place is not None and name in KEEPS | TAKES:
                if self.partly and (name in GATHERS or self.reach.is_container(place)):
                    self.track.reads(place, (place,))  # the rest of it stays
                self.track.changes(place)
        elif isinstance(call.func, ast.Name) and called.function.__closure__:
            self.read(call.func, sink)  # the contents of its closure are not followed

    def _of_collective(self, call: ast.Call, result: Sink) -> Sink:
        """Return the sink of what a collective reads: the tensors that it changes, and its result."""
        module = self.place(call.func.value) if isinstance(call.func, ast.Attribute) else None
        every = (self.place(part) for part in (*call.args, *(word.value for word in call.keywords)))
        given = [one for one in every if one is not None and (module is None or one.root != module.root)]
        into = self._into(given)
        return EFFECT if into is None or result is None else (*into, *result)

    def _change(self, call: ast.Call, sink: Sink) -> None:
        """Note a change in place: `x.mul_(0.9).add_(y)`, `torch._foreach_mul_(x, 0.9)`, `x.zero_()`."""
        calls, at = [call], call.func
        while isinstance(at, ast.Attribute) and isinstance(at.value, ast.Call):
            calls.append(at.value)
            at = at.value.func
        names = {name_of(one) for one in calls}
        owner: ast.expr | None = at.value if isinstance(at, ast.Attribute) else None
        if self.reach.is_module(self.place(owner)) or name_of(call).startswith("_foreach_"):
            owner = call.args[0] if call.args else None
        place = self.place(owner)
        sources = [place] if place is not None else [*self.sources(owner)] if owner is not None else []
        into = self._into(sources)
        for one in calls:
            for part in (*one.args, *one.keywords):
                self.read(part, into)
        for source in sources:
            if names <= EMPTIES and place is not None:
                gets_nothing = not any(one.args or one.keywords for one in calls)
                self.track.empties(source) if gets_nothing else self.track.overwrites(source)
            else:
                self.track.reads(source, (source,))
                self.track.changes(source, alters=not names <= ADDS)
            if sink != NOWHERE:
                self.track.reads(source, sink)

    def _enter(self, called: Called, call: ast.Call, sink: Sink) -> bool:
        """Follow a function of the script. Return False if it is not followed this time."""
        stored = stored_in(called.node)
        given = called.arguments(call, self._names)
        bound = {name: place for name, value in given if (place := self.place(value)) and name not in stored}
        if called.owner is not None:
            bound[called.code.co_varnames[0]] = called.owner
            self.track.calls(called.owner)
        key = called.code, frozenset(bound.items())
        if key in self._within or len(self._within) >= _DEPTH or self._followed >= _FOLLOWED:
            return False
        self._followed += 1
        names, local = self.reach.inside(called, bound), Names.local(called.code.co_name)
        for name, value in given:
            if name not in bound:
                self.read(value, (Place(name, f"{local}{name}"),))
        followed = {id(value) for _, value in given}
        for part in (*call.args, *(word.value for word in call.keywords)):
            if id(part) not in followed:
                self.read(part, EFFECT)
        self.track.ready |= {Place(name, f"{local}{name}") for name in names.own - bound.keys() if name not in stored}
        outer = self._names, self.hidden, self.tells
        self._names, self.hidden = names, []
        self._within.append(key)
        if called.code is self.awaited:
            self.met.append(names)
            self.track.reads(_GIVEN, sink)
            with self.track.inside():
                ends, leaves = self._follow(called.node.body, (_GIVEN,))
        else:
            ends, leaves = self._follow(called.node.body, sink)
        self._within.pop()
        self._names, self.hidden, self.tells = outer
        if ends and leaves:
            self.track.ready = ends[-1] if self._hopeful else set.intersection(*ends)
        elif ends and not self._hopeful:
            self.track.ready = set.intersection(self.track.ready, *ends)
        self.track.ready = {place for place in self.track.ready if not place.root.startswith(local)}
        return True


def unused(node: ast.expr) -> Iterator[ast.Call]:
    """Return the calls whose results are lost with the value of this expression, which nobody uses, and those that have
    made their objects. A backward is no such call."""
    match node:
        case ast.Call() if name_of(node) != "backward":
            yield node
            yield from _makers(node)
        case ast.Await() | ast.Starred():
            yield from unused(node.value)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            yield from unused(node.elt)
        case ast.BoolOp():
            yield from unused(node.values[-1])
        case ast.IfExp():
            yield from unused(node.body)
            yield from unused(node.orelse)


def _makers(call: ast.Call) -> Iterator[ast.Call]:
    """Return the calls that have made the object of this one: `base.cursor()` in `base.cursor().execute(text)`."""
    at = call.func
    while isinstance(at, ast.Attribute):
        at = at.value
        if isinstance(at, ast.Call):
            yield at
            at = at.func


def _dealt_with(call: ast.Call, tells: bool = False) -> tuple[list[ast.expr], list[ast.expr]]:
    """Return the function or method that is called, or has given the object of which it is a method; and what the call
    gets, unless it only shows that. `tells`: nobody uses the result; then a call that saves reaches nothing."""
    if tells and saves(call):
        return [], []
    *_, first = (call, *_makers(call))
    return [first.func], [] if shows(call) else [*call.args, *(word.value for word in call.keywords)]


def _made_of(value: ast.expr | None) -> Iterator[ast.expr]:
    """Return what a value is made from: the function that is called, and what it gets; or the value itself."""
    match value:
        case ast.Call():
            for nodes in _dealt_with(value):
                yield from nodes
        case ast.Name() | ast.Attribute() | ast.Subscript():
            yield value
        case ast.Await() | ast.NamedExpr():
            yield from _made_of(value.value)
        case ast.IfExp():
            yield from _made_of(value.body)
            yield from _made_of(value.orelse)
        case ast.BoolOp():
            for part in value.values:
                yield from _made_of(part)


def _each_of(loop: ast.For | ast.AsyncFor) -> tuple[str, ast.expr]:
    """Return a loop's variable and what it goes over: `for one in all`, `all.values()`, `all.items()`."""
    target, source, asked = loop.target, loop.iter, ""
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute) and not source.args:
        asked, source = source.func.attr, source.func.value
    if asked == "items" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
        target = target.elts[1]
    elif asked not in ("", "values"):
        return "", source
    return target.id if isinstance(target, ast.Name) else "", source


def _is_whole(key: ast.expr) -> bool:
    """Whether this key names all items: `x[:]`, `x[...]`."""
    if isinstance(key, ast.Slice):
        return key.lower is None and key.upper is None and key.step is None
    return isinstance(key, ast.Constant) and key.value is Ellipsis


def _belongs_to_others(place: Place) -> bool:
    """Whether it is so deep inside an object that other code which has the object may use it."""
    return len(place.path) - bool(place.module) - (place.root == "self") >= _OWN_PATH
