"""The values that outer loops set: loops around a loop over steps(), in the same function or in its callers.

    for epoch in session.epochs(10):
        train(weight)  # here is the loop over steps()
        score = evaluate()
        best, weight = max(best, score), 1.0 + score

A newcomer runs through the finished epochs without their trained weights. So it computes other values for `best` and
`weight`, and for all that depends on them. Each rank notes the plain values among these (plain.py) when a loop begins,
and a newcomer gets them in that loop. They are variables, attributes, items of lists and dicts, and the arguments of
the functions on the way.

It does NOT see code between two loops that have no common outer loop, code that flow.py does not follow, and values
that are not plain. The variable of a loop (`epoch`) is never given: setting it would not advance its iterator.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Set
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

from taskd.state.flow import Flow
from taskd.state.leaves import Thing, code_of
from taskd.state.nodes import all_in, names_in
from taskd.state.places import Place, reached
from taskd.state.plain import Noted, can_be_given, is_scalar, packed, unpacked
from taskd.state.reach import Reach
from taskd.state.script import Script
from taskd.state.sources import gives_locals, loops_at, node_of

_FRAMES = 16
_MOST = 256
"""At most this many places of one function are noted."""


class Sets(NamedTuple):
    """What the loops around one line set and use."""

    places: tuple[Place, ...] = ()
    goes_over: tuple[Place, ...] = ()
    """The variables of these loops (`epoch` in `for epoch in ...`)."""
    arguments: tuple[Place, ...] = ()
    """The arguments of the function that contains the line."""
    kept: tuple[Place, ...] = ()
    """Places that keep a value for a later turn or for the code after the loops. The value may be of any kind."""
    uses: tuple[Place, ...] = ()
    """Places that a turn of the loops finds already set, and uses."""
    names: tuple[Place, ...] = ()
    """All names in these loops and in the loop over steps()."""


class _Way(NamedTuple):
    """One function on the way from the outermost loop to the one over steps()."""

    prefix: str
    """The prefix of its names. The last function on the way has none."""
    script: Script
    places: tuple[Place, ...]
    sets: Sets


class Around:
    """The outer loops of one session."""

    def __init__(self) -> None:
        self._sets: dict[tuple[CodeType, int], Sets] = {}

    def sets(self, known: Set[int]) -> Noted:
        """Return the plain values that the loops set. `known`: ids of objects that are restored in another way."""
        return _noted((way.prefix, way.script.everything(way.places, known)) for way in self._ways())

    def goes_over(self) -> Noted:
        """Return the plain values of the loop variables."""
        return _noted((way.prefix, way.script.everything(way.sets.goes_over, frozenset())) for way in self._ways())

    def kept(self, known: Set[int]) -> list[Thing]:
        """Return the values that are not plain and that the loops keep for a later turn or for the code after them."""
        found = [(way.prefix, way.script.everything(way.sets.kept, known)) for way in self._ways()]
        things = [(prefix + name, value) for prefix, values in found for name, value in values.items()]
        return [(name, value) for name, value in things if packed(value) is None]

    def uses(self, known: Set[int] = frozenset(), but: Set[str] = frozenset()) -> list[Thing]:
        """Return what a turn of the loops finds and uses, of any kind, and the code that may run there. Nothing inside
        of known objects is returned. `but`: names of things that are not needed."""
        things = list[Thing]()
        for way in self._ways():
            uses = [place for place in way.sets.uses if way.prefix + place.text not in but] if but else way.sets.uses
            found = reached(way.script.rooted(uses), known)
            things += [(way.prefix + name, value) for name, value in found.items()]
            names = [place for place in way.sets.names if place.text not in but] if but else way.sets.names
            named = way.script.everything(names, frozenset())
            shared = {*way.script.loop[0].co_cellvars} - {
                place.root for place in (*way.sets.places, *way.sets.goes_over)
            }
            # A function that is defined in the loop is new in each turn. These variables of it are not: see leaves.py.
            things += [(name, named[name]) for name in sorted(shared) if name in named and is_scalar(named[name])]
            things += [code for name, value in named.items() for code in code_of(name, value)]
        return things

    def makes(self, name: str) -> bool:
        """Whether the outer loops set this name, or what it is a part of, in the function of the loop over steps()."""
        texts = {place.text for place in self._ways()[-1].places}
        return any(name[:at] in texts for at in (len(name), *(one.start() for one in re.finditer(r"[.\[]", name))))

    def give(self, noted: Noted, known: Set[int]) -> list[str]:
        """Set the places to the noted values, except where a value stands that is not plain. Return what changed."""
        given, noted = list[str](), {name: data for name, data in noted.items() if can_be_given(data)}
        for way in self._ways():
            there = way.script.everything(way.places, known)
            values = {place: noted[way.prefix + place.text] for place in way.places if way.prefix + place.text in noted}
            for place, data in [*values.items()]:
                if place.text in there and packed(there[place.text]) in (None, data):
                    del values[place]
            way.script.give({place: unpacked(data) for place, data in values.items()})
            given += [place.text for place in values]
        return sorted(given)

    def _ways(self) -> list[_Way]:
        """Return the functions on the way, from the outermost loop inward."""
        found, script = list[tuple[Script, Sets]](), Script.asking()
        while script is not None and len(found) < _FRAMES:
            found.append((script, self._of(script, innermost=not found)))
            script = script.caller()
        ways, inside, met = list[_Way](), False, set[str]()
        for script, sets in reversed(found):
            prefix = "" if script is found[0][0] else f"{script.place}: "
            if prefix not in met:  # a recursive function counts once
                ways.append(_Way(prefix, script, (sets.arguments if inside else ()) + sets.places, sets))
            met.add(prefix)
            inside = inside or bool(sets.places or sets.goes_over)
        return ways

    def _of(self, script: Script, innermost: bool) -> Sets:
        if script.loop not in self._sets:
            try:
                self._sets[script.loop] = _sets_around(script, innermost)
            except RecursionError:  # an expression of many hundred parts
                self._sets[script.loop] = Sets()
        return self._sets[script.loop]


def _noted(found: Iterable[tuple[str, dict[str, Any]]]) -> Noted:
    noted = {prefix + text: packed(value) for prefix, values in found for text, value in values.items()}
    return {name: data for name, data in noted.items() if data is not None}


def _sets_around(script: Script, innermost: bool) -> Sets:
    """Find what the outer loops set. `innermost`: this function also contains the loop over steps() itself."""
    code, line = script.loop
    home = node_of(code, script.space)
    if home is None or any(map(gives_locals, all_in(home))):
        return Sets()
    every = loops_at(home, line)
    loops = every[: -1 if innermost else None]
    own = frozenset(part.id for loop in loops for part in _targets(loop))
    arguments = _variables(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    names = _variables(sorted(set[str]().union(*map(names_in, every))))
    if not loops:
        return Sets(arguments=arguments, names=names)
    outermost, reach = loops[0], Reach(code, script.space, script.at)
    turn = Flow(reach, hopeful=True)
    places = Flow(reach, hopeful=False).sets(outermost)
    kept = Flow(reach, hopeful=True).keeps(home, outermost)
    turn.loop(home, outermost)
    uses = sorted(turn.found, key=lambda place: place.text)
    return Sets(
        places=_exact(places, own),
        goes_over=_variables(sorted(own)),
        arguments=arguments,
        kept=_exact(kept, own),
        uses=tuple(uses[:_MOST]),
        names=names,
    )


def _exact(places: set[Place], own: frozenset[str]) -> tuple[Place, ...]:
    """Return the exact ones of these places, without the loop variables (`own`)."""
    few = (place for place in places if place.is_exact and (place.path or place.root not in own))
    return tuple(islice(sorted(few, key=lambda place: place.text), _MOST))


def _variables(names: Iterable[str]) -> tuple[Place, ...]:
    return tuple(Place(name, name) for name in names)


def _targets(loop: Any) -> Iterator[ast.Name]:
    """Return the variables of this loop."""
    for part in ast.walk(loop.target) if not isinstance(loop, ast.While) else ():
        if isinstance(part, ast.Name):
            yield part
