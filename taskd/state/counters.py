"""Finds the variables that a script counts in its loop, in its source: `global_step += 1`, `self.tokens += n`.

A step that is done again must find a count as the first attempt found it. Other variables are better left alone. A
variable that each step sets anew needs no help. A number may stand for an object that no repair puts back (a
descriptor, the position of an iterator, a flag of something that is done once). So a counter is a variable that moves
from its own value (`n += ...`, `n = n + ...`, `best = min(best, loss)`): in the body of the loop, in a function of the
same module that the body calls, or in a method of the same `self`. Some counters are doubtful and left alone: one that
is also set to something other than a number (`n = unknown()`), one that moves under a condition together with something
that every step uses (`if i == len(data): it = iter(data); i = 0`), and all locals of a function that calls `locals()`.

Counts in other objects, dicts and lists (`meter.count`, `totals["n"]`) are found by flow.py, which follows all
functions and methods of the script. Such a count is put back if the loop counts it and sets it in no other way. A
number that the loop only reads there is put back, too, because code that is not followed (`getattr(one, name)()`) may
count it. A float that one step finds there as another step has left it is put back, however it is set. All other counts
(elsewhere.py) are only reported, or refused if they are used. numbering.py puts back what `enumerate` counts.

It does NOT see variables that functions of other modules count, and nothing of code without a source.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from taskd.state.dealings import Dealt
from taskd.state.elsewhere import Method, asked, goes_along, moved, numbered
from taskd.state.flow import Flow
from taskd.state.nodes import all_in
from taskd.state.places import ANY, NOTHING, NUMBERS, Place
from taskd.state.reach import LOCAL, Reach
from taskd.state.results import ALL, Uses, returns
from taskd.state.sources import gives_locals, loops_at, node_of, own_names, unwrapped
from taskd.state.statements import (
    HERE,
    MODULE,
    SELF,
    Variable,
    blocks_of,
    is_of_self,
    is_variable,
    moved_by,
    parts_of,
    set_by,
    set_to_numbers,
    used_by,
    variable_of,
)
from taskd.state.track import EFFECT, NOWHERE

_MOST_ROWS = 32
Look = Callable[[Place], Any]
"""Returns the value at a place when the loop begins."""


@dataclass(slots=True)
class Counters:
    """The counters of one loop."""

    local: list[str] = field(default_factory=list)
    attributes: list[str] = field(default_factory=list)
    module: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    """Locals of a function that calls `locals()`. Reading the frame would change the dict that it returned."""
    places: list[Place] = field(default_factory=list)
    """Numbers in other objects, dicts and lists."""
    elsewhere: list[Place] = field(default_factory=list)
    """Places that may hold a count and are none of the above."""
    methods: list[Method] = field(default_factory=list)
    """Methods that may count in their object."""

    def add(self, variable: Variable) -> None:
        """Add one variable."""
        owner, name = variable
        {SELF: self.attributes, MODULE: self.module, HERE: self.local}[owner].append(name)


class Numbered(NamedTuple):
    """How a loop's header numbers the steps, as enumerate() does."""

    used: bool = False
    """Whether the loop uses the numbers."""
    settable: bool = True
    """Whether only enumerate() numbers them."""
    name: str = ""
    """The variable that enumerate() counts there."""


class Kept(NamedTuple):
    """What steps may find as other steps have left it."""

    rows: tuple[Place, ...] = ()
    """The places, or the lists and dicts that they are in, at which they gather."""
    uncertain: frozenset[str] = frozenset()
    """The texts of those for which that depends on conditions."""
    shown: frozenset[str] = frozenset()
    """The texts of those that are only shown."""


class Loop(NamedTuple):
    """What a loop does to variables from step to step."""

    counts: Counters
    doubtful: Counters
    handed_on: Counters
    """Other variables that one step finds as another step has left them."""
    carried: tuple[Place, ...] = ()
    """Places of any kind that a step finds as another step has set or changed them, and uses."""
    computes: tuple[Place, ...] = ()
    """Those of them that have an effect in the loop's function, or through what it returns."""
    perhaps: tuple[Place, ...] = ()
    """Places for which that depends on conditions."""
    shown: frozenset[str] = frozenset()
    """Counts in other places that are only shown."""
    found: tuple[Place, ...] = ()
    """Places that the loop finds already set when it begins, and uses."""
    kept: Kept = Kept()
    """What steps may find as other steps have left it, and what is known of that."""
    written: tuple[Place, ...] = ()
    """Places that it may set or change in place."""
    dealt: Dealt = Dealt()
    """What is reached by calls that are not followed."""
    exposed: tuple[Place, ...] = ()
    """Places that a step reads before it sets them, whatever it does with the value."""
    shares_locals: bool = False
    """Whether its function calls locals(): reading its frame would change what that has returned."""
    guards: tuple[Place, ...] = ()
    """Flags that guard what is done only once."""
    numbered: Numbered = Numbered()

    @property
    def rows(self) -> tuple[Place, ...]:
        """The places, or the lists and dicts that they are in, at which a step may find what another has gathered."""
        return self.kept.rows

    @property
    def moved_unseen(self) -> set[str]:
        """The numbers in other places that it uses, and only code that is not followed can move."""
        return {one.text for one in self.counts.places if not any(one.touches(other) for other in self.written)}

    def moves(self, name: str) -> bool:
        """Whether its statements may set this counter."""
        counts = self.counts
        places = {one.text for one in counts.places if any(one.touches(other) for other in self.written)}
        return name in {*counts.local, *counts.attributes, *counts.module, *places} - {self.numbered.name}


@dataclass(slots=True)
class _Found:
    """What a sequence of statements does to variables."""

    counted: set[Variable] = field(default_factory=set)
    doubtful: set[Variable] = field(default_factory=set)
    """Variables that are set in another way, whether they are counted or not."""
    called: set[Variable] = field(default_factory=set)
    elsewhere: set[Place] = field(default_factory=set)
    methods: set[Method] = field(default_factory=set)
    handed_on: set[Variable] = field(default_factory=set)
    shares_locals: bool = False

    def look_at(self, block: Sequence[ast.stmt], used: set[Variable], conditional: bool) -> None:
        """Look at these statements and those inside them. `used`: variables that are read under no condition."""
        replaced, counted = set[Variable](), set[Variable]()
        for statement in block:
            by_itself = moved_by(statement)
            counted |= by_itself
            replaced |= {one for one in set_by(statement) if one not in by_itself}
            calls = [node for node in parts_of(statement) if isinstance(node, ast.Call)]
            self.called |= {found for call in calls if (found := variable_of(call.func)) is not None}
            self.methods |= {method for call in calls if (method := asked(call)) is not None}
            self.elsewhere |= {place for place in moved(statement) if not is_of_self(place)}
            for inner, depends in blocks_of(statement):
                self.look_at(inner, used, conditional or depends)
        numbers = {one for statement in block for one in set_to_numbers(statement)}
        self.counted |= counted
        self.doubtful |= replaced - numbers
        if conditional and (replaced - numbers) & used:
            self.doubtful |= counted | numbers

    def of(self, code: CodeType) -> _Found:
        """Return the same findings, with variables of the module marked as such."""
        own = own_names(code)

        def home(variables: set[Variable]) -> set[Variable]:
            return {(MODULE, name) if owner == HERE and name not in own else (owner, name) for owner, name in variables}

        return _Found(home(self.counted), home(self.doubtful), self.called, self.elsewhere, self.methods)


def of_loop(
    code: CodeType, line: int, space: dict[str, Any], look: Look, uses: Callable[[], Uses] = lambda: ALL
) -> Loop:
    """Return what the innermost loop around this line does. `space`: the globals of its module; `uses` says what
    its function's callers use, and takes time."""
    home = node_of(code, space)
    loops = loops_at(home, line)
    if home is None or not loops:
        return Loop(Counters(), Counters(), Counters())
    node = loops[-1]
    beside, settable = goes_along(node)
    own = own_names(code) if code.co_name != "<module>" else frozenset[str]()
    shares = bool(own) and any(map(gives_locals, all_in(home)))
    if shares:
        look = partial(_in_module, space, own)
    try:
        found = _counted(node, code, space, shares, look)
        callers = uses() if returns(home) else None
        gives = NOWHERE if callers is not None and not callers.result else EFFECT
        flows = [Flow(Reach(code, space, look), hopeful, gives) for hopeful in (True, False)]
        for flow in flows:
            flow.loop(home, node)
    except RecursionError:  # an expression of many hundred parts
        return Loop(Counters(), Counters(), Counters())
    hopeful, other = flows
    found.handed_on = {one for place in other.handed_on if (one := _variable(place, own)) is not None}
    if callers is None and any(place.path or place.root not in own for place in hopeful.handed_on):
        callers = uses()
    outside = set[Place]() if callers is None else {place for place in hopeful.handed_on if callers.use(place)}
    carried = hopeful.used | outside
    perhaps = other.used - carried
    hidden = {place for place in carried | perhaps if shares and place.root in own}
    loop = _sorted(found, own if shares else frozenset())
    apart = {place for place in hopeful.counted if not (shares and place.root in own) and _is_apart(place, look)}
    gathered = {one for one in hopeful.handed_on & hopeful.written if not (shares and one.root in own)}
    gathered -= carried | perhaps
    apart |= {one for one in gathered if LOCAL not in one.root and not is_variable(one) and _may_move(one, look)}
    shown = frozenset(place.text for place in apart - carried - other.used)
    unset = {place for place in hopeful.found if not any(one.touches(place) for one in other.written)}
    apart |= {place for place in unset if not (shares and place.root in own) and _may_move(place, look)}
    loop.counts.places = _unlike(apart)
    others = {one for one in other.used - apart if one.is_exact and LOCAL not in one.root and not is_variable(one)}
    loop.handed_on.places = _unlike(place for place in others - hidden if _is_apart(place, look))
    loop.doubtful.unread += sorted({place.text for place in hidden} - {*loop.doubtful.unread})
    handed = {row.text for row in map(row_of, carried - hidden) if row is not None}
    used = {*filter(None, map(row_of, (carried | perhaps) - hidden))}
    listed = {*filter(None, map(row_of, gathered))} - used
    rows = sorted(_unlike(used | listed), key=listed.__contains__)  # the used ones first
    unseen = own if shares else frozenset[str]()
    finds = _by_text(place for place in hopeful.found if place.root not in unseen)
    return loop._replace(
        carried=_by_text(carried - hidden),
        computes=_by_text((hopeful.computes | outside) & carried - hidden),
        perhaps=_by_text(perhaps - hidden),
        shown=shown,
        found=finds,
        kept=Kept(
            tuple(rows[:_MOST_ROWS]),
            frozenset(row.text for row in rows) - handed,
            frozenset(row.text for row in rows if row in listed),
        ),
        written=_by_text(hopeful.written | other.written),
        dealt=Dealt(*(frozenset(one for one in places if one.root not in unseen) for places in hopeful.dealt)),
        exposed=_by_text(hopeful.handed_on),
        shares_locals=shares,
        guards=_by_text(hopeful.guards | other.guards),
        numbered=Numbered(
            any(place.root in beside for flow in flows for place in flow.track.leads()), settable, numbered(node)
        ),
    )


def _in_module(space: dict[str, Any], own: frozenset[str], place: Place) -> Any:
    """Return what is at this place. Locals of the function must not be looked at, so they give NOTHING."""
    root = vars(sys.modules[place.module]) if place.module else space.get(place.root, NOTHING)
    return NOTHING if place.root in own else place.found(root)


def _may_move(place: Place, look: Look) -> bool:
    """Whether it is a number in an object, dict or list. Code that is not followed here may count it."""
    return bool(place.path) and place.is_exact and type(look(place)) in NUMBERS and _is_apart(place, look)


def _is_apart(place: Place, look: Look) -> bool:
    """Whether no iterator is stored beside it. A repair would put back the number without the iterator."""
    space = getattr(look(replace(place, path=place.path[:-1])), "__dict__", None)
    return not any(hasattr(type(value), "__next__") for value in space.values()) if type(space) is dict else True


def _unlike(places: Iterable[Place]) -> list[Place]:
    """Return these places, less those that have the same text."""
    found = _by_text(places)
    texts = Counter(place.text for place in found)
    return [place for place in found if texts[place.text] == 1]


def _by_text(places: Iterable[Place]) -> tuple[Place, ...]:
    return tuple(sorted(places, key=lambda place: place.text))


def _sorted(found: _Found, hidden: frozenset[str]) -> Loop:
    """Sort the findings into a Loop. `hidden`: names that cannot be looked at."""
    loop = Loop(Counters(), Counters(), Counters())
    for variable in sorted(found.counted | found.handed_on):
        if found.shares_locals and variable[0] != MODULE:
            loop.doubtful.unread.append(variable[1])
        elif variable not in found.counted:
            loop.handed_on.add(variable)
        else:
            (loop.doubtful if variable in found.doubtful else loop.counts).add(variable)
    loop.doubtful.elsewhere = [*_by_text(place for place in found.elsewhere if place.root not in hidden)]
    methods = [method for method in found.methods if method.place.root not in hidden]
    loop.doubtful.methods = sorted(methods, key=lambda method: (method.place.text, method.name))
    return loop


def name_of(place: Place) -> str:
    """Return the name under which its number is known: that of the variable, if it is one."""
    return str(place.path[0][1]) if place.root == "self" and len(place.path) == 1 else place.text


def row_of(place: Place) -> Place | None:
    """Return this place, or the list or dict of which it is an item with a computed key. None: there is none such."""
    if place.is_exact or not place.path:
        return place
    owner = replace(place, text=place.text.rpartition("[")[0], path=place.path[:-1])
    return owner if place.path[-1][1] is ANY and owner.is_exact else None


def _variable(place: Place, own: frozenset[str]) -> Variable | None:
    """Return this place as a variable, if it is one."""
    match place.path:
        case () if not place.module:
            return (HERE if place.root in own else MODULE), place.root
        case ((True, str(name)),) if place.root == "self":
            return SELF, name
        case _:
            return None


def of_function(function: FunctionType) -> list[str]:
    """Return the attributes of `self` that a method moves from their own value, whatever class it is from."""
    node = node_of(function.__code__, function.__globals__)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    return sorted(name for owner, name in _found_in(node.body, function.__code__).counted if owner == SELF)


def _counted(loop: Any, code: CodeType, space: dict[str, Any], shares_locals: bool, look: Look) -> _Found:
    """Return what the loop's body counts, and the functions of its module and methods of its `self` that it calls."""
    body = _found_in(loop.body, code, numbered(loop))
    body.shares_locals = shares_locals
    todo, met = [*body.called], {code}
    while todo:
        called = _function(todo.pop(), space, look)
        if called is None or called.__code__ in met:
            continue
        met.add(called.__code__)
        node = node_of(called.__code__, space)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found = _found_in(node.body, called.__code__)
            todo += found.called
            shared = {(HERE, name) for name in {*called.__code__.co_freevars} & {*code.co_cellvars, *code.co_freevars}}
            body.counted |= {one for one in found.counted if one[0] != HERE or one in shared}
            body.doubtful |= {one for one in found.doubtful if one[0] != HERE or one in shared}
            body.elsewhere |= found.elsewhere
            body.methods |= found.methods
    return body


def _function(called: Variable, space: dict[str, Any], look: Look) -> FunctionType | None:
    """Return the function of this module that this variable holds."""
    owner, name = called
    if owner:
        found = look(Place("self", "self"))
        kinds = () if found is NOTHING else type(found).__mro__
        value = next((vars(kind)[name] for kind in kinds if name in vars(kind)), None)
    else:
        value = look(Place(name, name))
    function = unwrapped(value)
    return function if function is not None and function.__globals__ is space else None


def _found_in(block: Sequence[ast.stmt], code: CodeType, number: str = "") -> _Found:
    """Return what a block does. `number`: a variable that the loop's header counts and sets, not the block."""
    found = _Found()
    found.look_at(block, used_by(block), False)
    if number:
        found.counted.add((HERE, number))
    return found.of(code)
