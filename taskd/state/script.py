"""The script that asks for a step: its counters, and how they are given other values.

It is the first frame above taskd's own that is neither of the standard library nor of an installed package. Which of
its variables are counters stands in counters.py: locals, attributes of `self` where it is a method, and variables of
its module. Only whole numbers and floats are looked at.

Nothing here keeps an object of the script's alive.
"""

from __future__ import annotations

import ctypes
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from itertools import islice
from types import FrameType, FunctionType
from typing import Any

from taskd.state import counters
from taskd.state.counters import Counters, Loop
from taskd.state.places import NOTHING, NUMBERS, Place
from taskd.state.plain import filled
from taskd.state.sources import own_names, passed_over
from taskd.state.statements import HERE, MODULE, SELF, Variable

Number = int | float
Values = list[dict[str, Number]]
"""By place and name."""
LOCALS, ATTRIBUTES, GLOBALS, ELSEWHERE = range(4)
"""Where the numbers of a script are: its variables, and what is a part of something else."""
PLACES = 4
MOST = 64
"""Counters of each kind."""
WHOLE = frozenset((int,))
FLOATS = frozenset((float,))
"""They stand for nothing but themselves, while a whole number may be a descriptor, or the place of an iterator."""
_COPIES = sys.version_info < (3, 13)
"""A frame gives a copy of its locals, which has to be written back."""
_OWN_REFERENCES = 4
"""To that copy if nobody else has it: of the frame, of two functions here, and of the argument of getrefcount."""


class Script:
    """The frame that asks for a step, for as long as it asks."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame
        self.space = frame.f_globals
        """Of its module."""
        code = frame.f_code
        self.place = f"{getattr(code, 'co_qualname', code.co_name)}, line {code.co_firstlineno}"
        """Which function it is."""
        self._function = bool(code.co_flags & inspect.CO_OPTIMIZED)
        self._method = self._function and bool(code.co_argcount) and code.co_varnames[0] == "self"

    @classmethod
    def asking(cls) -> Script | None:
        """None: there is no such frame, as where the loop stands in an installed package."""
        return cls._above(sys._getframe(1))

    @classmethod
    def _above(cls, frame: FrameType | None) -> Script | None:
        while frame is not None and passed_over(frame.f_code.co_filename, frame.f_code.co_name):
            frame = frame.f_back
        return None if frame is None else cls(frame)

    def caller(self) -> Script | None:
        """The next function of the script's that waits for this one."""
        return self._above(self._frame.f_back)

    def user(self) -> Script | None:
        """Who goes through this, if it is a generator."""
        return self.caller() if self._frame.f_code.co_flags & inspect.CO_GENERATOR else None

    @property
    def loop(self) -> tuple[Any, int]:
        """Where it asks."""
        return self._frame.f_code, self._frame.f_lineno

    def counters(self) -> Loop:
        """What the loop does in which it asks."""
        return counters.of_loop(self._frame.f_code, self._frame.f_lineno, self.space, self.at)

    def at(self, place: Place) -> Any:
        """What is there, or NOTHING."""
        found = self._frame.f_locals if self._function else {}
        value = place.found(self._root(found, place))
        self._let_go(found)
        return value

    def _root(self, found: Any, place: Place) -> Any:
        """What a place begins with; `found`: the locals, if it may be one of them."""
        if place.module:
            module = sys.modules.get(place.module)
            return NOTHING if module is None else vars(module)
        return found.get(place.root, self.space.get(place.root, NOTHING))

    def _locals_for(self, places: Iterable[Place]) -> Any:
        """The locals, if one of the places begins there."""
        own = own_names(self._frame.f_code) if self._function else frozenset[str]()
        return self._frame.f_locals if any(place.root in own for place in places) else {}

    def elsewhere(self, names: Counters, known: Set[int]) -> list[str]:
        """Numbers that it counts in other places, but for those in objects that are known."""
        found = self._locals_for((*names.elsewhere, *(method.place for method in names.methods)))
        texts = [place.text for place in names.elsewhere if _is_number(place.found(self._root(found, place), known))]
        for method in names.methods:
            texts += method.counted(self._root(found, method.place), known, _moves)
        self._let_go(found)
        return texts

    def values(self, names: Counters, kinds: frozenset[type] = NUMBERS) -> Values:
        """The numbers there are, of these kinds."""
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
        """What is in these places, but for what is in objects that are known."""
        found = self._locals_for(places)
        values = ((place.text, place.found(self._root(found, place), known)) for place in places)
        there = {text: value for text, value in values if value is not NOTHING}
        self._let_go(found)
        return there

    def things(self, places: Sequence[Place], known: Set[int]) -> Iterator[tuple[str, Any]]:
        """What is in these places and no number, but for objects that are known."""
        found = self._locals_for(places)
        for place in places:
            value = place.held(self._root(found, place), known)
            if value is not None and type(value) not in NUMBERS:
                yield place.text, value
        self._let_go(found)

    def rooted(self, places: Sequence[Place]) -> list[tuple[Place, Any]]:
        """These places, each with what it begins with."""
        found = self._locals_for(places)
        rooted = [(place, self._root(found, place)) for place in places]
        self._let_go(found)
        return rooted

    def held(self, *names: Counters) -> Iterator[tuple[Variable, Any]]:
        """What these variables hold."""
        here = self._function and any(one.local or one.attributes for one in names)
        found = self._frame.f_locals if here else {}
        attributes = _attributes(found if self._method else {})
        for one in names:
            for owner, place, which in ((HERE, found, one.local), (SELF, attributes, one.attributes)):
                yield from (((owner, name), place[name]) for name in which if name in place)
            yield from (((MODULE, name), self.space[name]) for name in one.module if name in self.space)
        self._let_go(found)

    def put(self, values: Values, places: Sequence[Place] = ()) -> None:
        """Let those variables have these values that are numbers or not there yet, and so these places."""
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
        """Let these places have these values, whatever is there. A list or dict stays the same one."""
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
        """Into the locals, which can be done once after they were asked for."""
        found.update(values)
        if values and _COPIES:
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self._frame), ctypes.c_int(0))

    def _let_go(self, found: Any) -> None:
        """Else the frame would keep this step's tensors alive until it is looked at again."""
        if _COPIES and self._function and sys.getrefcount(found) <= _OWN_REFERENCES:
            if found.keys() <= (own := own_names(self._frame.f_code)):
                found.clear()
                return
            for name in own & found.keys():  # there are more, which exec has made
                del found[name]


def _counted(names: Iterable[str], found: Any, kinds: frozenset[type]) -> dict[str, Number]:
    """Those attributes of `self`, which begin as what its class says; `found`: the locals of a method."""
    attributes, values = _attributes(found), dict[str, Number]()
    for kind in reversed(type(found.get("self")).__mro__):
        values.update(_numbers(names, vars(kind), kinds))
    return {**values, **_numbers(names, attributes, kinds)} if attributes or values else {}


def _attributes(found: Any) -> dict[str, Any]:
    """Of `self`; of a class that answers for its own in another way, none."""
    try:
        attributes = found["self"].__dict__ if found else {}
    except Exception:
        return {}
    return attributes if type(attributes) is dict else {}


def _moves(function: FunctionType) -> list[str]:
    """What a method of the script's own moves of its `self`."""
    code = function.__code__
    return [] if passed_over(code.co_filename, code.co_name) else counters.of_function(function)


def _numbers(names: Iterable[str], space: Any, kinds: frozenset[type]) -> dict[str, Number]:
    return {name: value for name in islice(names, MOST) if type(value := space.get(name)) in kinds}


def _is_number(value: Any) -> bool:
    return type(value) in NUMBERS


def _replacing(space: Any, values: dict[str, Number]) -> dict[str, Number]:
    return {name: value for name, value in values.items() if type(space.get(name, 0)) in NUMBERS}
