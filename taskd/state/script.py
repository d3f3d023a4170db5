"""Reads and sets the counters of the script that asks for a step.

The script is the first frame above taskd's own frames that belongs neither to the standard library nor to an installed
package. counters.py says which variables are counters: locals, attributes of `self` if the function is a method, and
variables of its module. Only whole numbers and floats are looked at.

Nothing here keeps an object of the script alive.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from types import CodeType, FrameType, FunctionType
from typing import Any

from taskd.state import counters
from taskd.state.counters import Counters, Loop
from taskd.state.places import NOTHING, NUMBERS, Place, Spot, may_be_replaced
from taskd.state.plain import filled
from taskd.state.results import Caller, Uses
from taskd.state.sources import own_names, passed_over
from taskd.state.statements import HERE, MODULE, SELF, Variable

Number = int | float
Values = list[dict[str, Number]]
"""Numbers by place and name."""
LOCALS, ATTRIBUTES, GLOBALS, ELSEWHERE = range(4)
"""The places of a script's numbers: three kinds of variables, and parts of other objects."""
PLACES = 4
MOST = 64
"""At most this many counters of each kind."""
WHOLE = frozenset((int,))
FLOATS = frozenset((float,))
"""A float stands only for itself. A whole number may be a descriptor, or the position of an iterator."""
_FRAMES = 24
_CALLERS = 8
"""At most so many functions up the stack are looked at."""
_COPIES = sys.version_info < (3, 13)
"""On these versions a frame gives a copy of its locals, which has to be written back."""
_OWN_REFERENCES = 4
"""References to that copy if no other code has it: the frame's, two of functions here, and getrefcount's argument."""


class Script:
    """The frame that asks for a step, for as long as it asks."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self.space = frame.f_globals
        """The globals of its module."""
        code = frame.f_code
        self.place = f"{getattr(code, 'co_qualname', code.co_name)}, line {code.co_firstlineno}"
        """The name and the first line of the function."""
        self._function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        self._method = self._function and bool(code.co_argcount) and code.co_varnames[0] == "self"

    @classmethod
    def asking(cls) -> Script | None:
        """Return the script, or None if there is no such frame: the loop may be in an installed package."""
        return cls._above(sys._getframe(1))

    @classmethod
    def _above(cls, frame: FrameType | None) -> Script | None:
        while frame is not None and passed_over(frame.f_code.co_filename, frame.f_code.co_name):
            frame = frame.f_back
        return None if frame is None else cls(frame)

    def caller(self) -> Script | None:
        """Return the next function of the script up the stack, which waits for this one."""
        return self._above(self._frame.f_back)

    def user(self) -> Script | None:
        """Return the function that iterates over this one, if this one is a generator."""
        return self.caller() if self._frame.f_code.co_flags & inspect.CO_GENERATOR else None

    @property
    def loop(self) -> tuple[Any, int]:
        """The code and the line where it asks for a step."""
        return self._frame.f_code, self._frame.f_lineno

    def counters(self) -> Loop:
        """Return what the loop does in which it asks for a step."""
        return counters.of_loop(*self.loop, self.space, self.at, lambda: _uses_of(self))

    def at(self, place: Place) -> Any:
        """Return the value at this place, or NOTHING."""
        found = self._frame.f_locals if self._function else {}
        value = place.found(self._root(found, place))
        self._let_go(found)
        return value

    def _root(self, found: Any, place: Place) -> Any:
        """Return the object that a place begins with; `found`: the locals, if it may be one of them."""
        if place.module:
            module = sys.modules.get(place.module)
            return NOTHING if module is None else vars(module)
        return found.get(place.root, self.space.get(place.root, NOTHING))

    def _locals_for(self, places: Iterable[Place]) -> Any:
        """Return the locals, if one of the places begins there."""
        own = own_names(self._frame.f_code) if self._function else frozenset[str]()
        return self._frame.f_locals if any(place.root in own for place in places) else {}

    def elsewhere(self, names: Counters, but: Set[Any]) -> list[str]:
        """Return names of numbers that it counts in other places. `but`: ids of objects, and spots, that are
        left out."""
        found = self._locals_for((*names.elsewhere, *(method.place for method in names.methods)))
        texts = [place.text for place in names.elsewhere if _is_number(place.found(self._root(found, place), but))]
        for method in names.methods:
            texts += method.counted(self._root(found, method.place), but, _moves)
        self._let_go(found)
        return texts

    def values(self, names: Counters, kinds: frozenset[type] = NUMBERS) -> Values:
        """Return the current numbers of these counters, if they are of these kinds."""
        values: Values = [{}, {}, _numbers(names.module, self.space, kinds), {}]
        if self._function and (names.local or names.attributes):
            found = self._frame.f_locals
            values[LOCALS] = _numbers(names.local, found, kinds)
            values[ATTRIBUTES] = (
                _counted(names.attributes, found if self._method else {}, kinds) if names.attributes else {}
            )
            self._let_go(found)
        return values

    def everything(self, places: Sequence[Place], known: Set[int]) -> dict[str, Any]:
        """Return the values at these places, except for those in known objects."""
        found = self._locals_for(places)
        values = ((place.text, place.found(self._root(found, place), known)) for place in places)
        there = {text: value for text, value in values if value is not NOTHING}
        self._let_go(found)
        return there

    def things(self, places: Sequence[Place], known: Set[int]) -> Iterator[tuple[str, Any]]:
        """Return the values at these places, except for numbers and for known objects."""
        found = self._locals_for(places)
        for place in places:
            value = place.held(self._root(found, place), known)
            if value is not None and type(value) not in NUMBERS:
                yield place.text, value
        self._let_go(found)

    def rooted(self, places: Sequence[Place]) -> list[tuple[Place, Any]]:
        """Return these places, each with the object that it begins with."""
        found = self._locals_for(places)
        rooted = [(place, self._root(found, place)) for place in places]
        self._let_go(found)
        return rooted

    def held(self, *names: Counters) -> Iterator[tuple[Variable, Any]]:
        """Return the values of these variables."""
        here = self._function and any(one.local or one.attributes for one in names)
        found = self._frame.f_locals if here else {}
        attributes = _attributes(found if self._method else {})
        for one in names:
            for owner, place, which in ((HERE, found, one.local), (SELF, attributes, one.attributes)):
                yield from (((owner, name), place[name]) for name in which if name in place)
            yield from (((MODULE, name), self.space[name]) for name in one.module if name in self.space)
        self._let_go(found)

    def put(self, values: Values, places: Sequence[Place] = ()) -> None:
        """Set variables and places to these values, but only those that hold a number or None or do not exist yet."""
        if values[ELSEWHERE]:
            found = self._locals_for(places)
            for place in places:
                if place.text in values[ELSEWHERE]:
                    place.put(self._root(found, place), values[ELSEWHERE][place.text])
            self._let_go(found)
        if self._function and (values[LOCALS] or values[ATTRIBUTES]):
            code, found = self._frame.f_code, self._frame.f_locals
            attributes = _attributes(found if self._method else {})
            attributes.update(_replacing(attributes, values[ATTRIBUTES]))
            own = {name: value for name, value in values[LOCALS].items() if name in own_names(code)}
            self._write(found, _replacing(found, own))
            self._let_go(found)
        self.space.update(_replacing(self.space, values[GLOBALS]))

    def give(self, values: Mapping[Place, Any]) -> None:
        """Set these places to these values, whatever is there now. A list or dict stays the same object."""
        found = self._locals_for(values)
        own = own_names(self._frame.f_code) if self._function else frozenset[str]()
        new = dict[str, Any]()
        for place, value in values.items():
            root = self._root(found, place)
            if place.path:
                place.set(root, value)
            elif not filled(root, value):
                (new if place.root in own else self.space)[place.root] = value
        self._write(found, new)
        self._let_go(found)

    def _write(self, found: Any, values: dict[str, Any]) -> None:
        """Write into the locals. This works only once after each read of the locals."""
        found.update(values)
        if values and _COPIES:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self._frame), ctypes.c_int(0))

    def _let_go(self, found: Any) -> None:
        """Empty the copy of the locals. Otherwise it would keep this step's tensors alive until the next look."""
        if _COPIES and self._function and sys.getrefcount(found) <= _OWN_REFERENCES:
            if found.keys() <= (own := own_names(self._frame.f_code)):
                found.clear()
                return
            for name in own & found.keys():  # other names in it were made by exec
                del found[name]


def frame_of(script: Script) -> FrameType:
    """Return the frame of this function, which must not be kept."""
    return script._frame


def spots_of_name(script: Script, owner: str, name: str) -> set[int | str | Spot]:
    """Return where this variable is (statements.py): its name, and the object that it is stored in."""
    if owner == SELF:
        found = script._frame.f_locals
        spots: set[int | str | Spot] = {(id(found.get("self")), name), f"self.{name}"}
        script._let_go(found)
        return spots
    return {name, (id(script.space), name)} if owner == MODULE or not script._function else {name}


def stack_of(script: Script) -> list[tuple[CodeType, int]]:
    """Return the code and the line of this function and of those that have called it."""
    found, frame = list[tuple[CodeType, int]](), script._frame
    while frame is not None and len(found) < _FRAMES:
        found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return found


def _uses_of(script: Script) -> Uses:
    """Return what the callers of this function use."""
    found, last = list[Caller](), script
    while last._function and len(found) < _CALLERS and (caller := last.caller()) is not None:
        direct = caller._frame is last._frame.f_back
        found.append(Caller(*caller.loop, caller.space, caller.at, direct))
        last = caller
    return Uses.of(script.loop[0], found, not last._function)


def _counted(names: Iterable[str], found: Any, kinds: frozenset[type]) -> dict[str, Number]:
    """Return these attributes of `self`, with those of its class as start values; `found`: the locals of a method."""
    attributes, values = _attributes(found), dict[str, Number]()
    for kind in reversed(type(found.get("self")).__mro__):
        values.update(_numbers(names, vars(kind), kinds))
    return {**values, **_numbers(names, attributes, kinds)} if attributes or values else {}


def _attributes(found: Any) -> dict[str, Any]:
    """Return the attributes of `self`. A class that stores them in another way gives none."""
    try:
        attributes = found["self"].__dict__ if found else {}
    except Exception:
        return {}
    return attributes if type(attributes) is dict else {}


def _moves(function: FunctionType) -> list[str]:
    """Return the attributes of `self` that a method of the script moves."""
    code = function.__code__
    return [] if passed_over(code.co_filename, code.co_name) else counters.of_function(function)


def _numbers(names: Iterable[str], space: Any, kinds: frozenset[type]) -> dict[str, Number]:
    return {name: value for name in islice(names, MOST) if type(value := space.get(name)) in kinds}


def _is_number(value: Any) -> bool:
    return type(value) in NUMBERS


def _replacing(space: Any, values: dict[str, Number]) -> dict[str, Number]:
    return {name: value for name, value in values.items() if may_be_replaced(space.get(name))}
