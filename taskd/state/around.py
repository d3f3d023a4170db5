"""What the loops around one over steps() set, in the function that it stands in and in those that have called that.

    for epoch in session.epochs(10):
        train(weight)  # here is the loop over steps()
        score = evaluate()
        best, weight = max(best, score), 1.0 + score

A newcomer comes by the epochs that are over without their weights, so it reckons `best` and `weight` otherwise, and
what is reckoned from them. What is plain of that (plain.py) is noted when a loop begins, and given to a newcomer in
that loop: variables, attributes, items of lists and dicts, and the arguments of the functions on the way.

It does NOT see what stands between two loops that no other one is around, what flow.py does not follow, and values
that are no plain ones. What a loop goes over (`epoch`) is never given: giving it would not move what gives it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Set
from itertools import islice
from types import CodeType
from typing import Any, NamedTuple

from taskd.state.counters import gives_locals
from taskd.state.flow import Flow
from taskd.state.leaves import Thing, code_of
from taskd.state.places import Place, reached
from taskd.state.plain import Noted, can_be_given, packed, unpacked
from taskd.state.reach import Reach
from taskd.state.script import Script
from taskd.state.sources import loops_at, node_of

_FRAMES = 16
_MOST = 256
"""Places of one function."""


class Sets(NamedTuple):
    """What the loops around one line set."""

    places: tuple[Place, ...] = ()
    goes_over: tuple[Place, ...] = ()
    """What they are at."""
    arguments: tuple[Place, ...] = ()
    """Of the function that the line stands in."""
    kept: tuple[Place, ...] = ()
    """What of that they keep for later, whatever it is."""
    uses: tuple[Place, ...] = ()
    """What each of their turns finds and uses."""
    names: tuple[Place, ...] = ()
    """All that stand in them, and in the loop over steps()."""


class _Way(NamedTuple):
    """One function on the way from the outermost loop to the one over steps()."""

    prefix: str
    """How its names begin, for all but the last one."""
    script: Script
    places: tuple[Place, ...]
    sets: Sets


class Around:
    """Of one session."""

    def __init__(self) -> None:
        self._sets: dict[tuple[CodeType, int], Sets] = {}

    def sets(self, known: Set[int]) -> Noted:
        """What is plain of what they set. `known`: objects that are put back in another way, by id."""
        return _noted((way.prefix, way.script.everything(way.places, known)) for way in self._ways())

    def goes_over(self) -> Noted:
        """What is plain of what they go over."""
        return _noted((way.prefix, way.script.everything(way.sets.goes_over, frozenset())) for way in self._ways())

    def kept(self, known: Set[int]) -> list[Thing]:
        """What is no plain value of what they keep from one turn to a later one, or to what is behind them."""
        found = [(way.prefix, way.script.everything(way.sets.kept, known)) for way in self._ways()]
        things = [(prefix + name, value) for prefix, values in found for name, value in values.items()]
        return [(name, value) for name, value in things if packed(value) is None]

    def uses(self) -> list[Thing]:
        """What each of their turns finds and uses, whatever it is, and the code that may be run there."""
        things = list[Thing]()
        for way in self._ways():
            things += [(way.prefix + name, value) for name, value in reached(way.script.rooted(way.sets.uses)).items()]
            named = way.script.everything(way.sets.names, frozenset())
            things += [code for name, value in named.items() for code in code_of(name, value)]
        return things

    def makes(self, name: str) -> bool:
        """Whether they make what the function of the loop over steps() has under this name."""
        texts = {place.text for place in self._ways()[-1].places}
        return any(name[:at] in texts for at in (len(name), *(one.start() for one in re.finditer(r"[.\[]", name))))

    def give(self, noted: Noted, known: Set[int]) -> list[str]:
        """Let it be this, where something else that is plain stands, or nothing. The names of what was not so."""
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
        """From the outermost loop inward."""
        found, script = list[tuple[Script, Sets]](), Script.asking()
        while script is not None and len(found) < _FRAMES:
            found.append((script, self._of(script, innermost=not found)))
            script = script.caller()
        ways, inside, met = list[_Way](), False, set[str]()
        for script, sets in reversed(found):
            prefix = "" if script is found[0][0] else f"{script.place}: "
            if prefix not in met:  # else it calls itself
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
    """`innermost`: the loop over steps() itself stands there, too."""
    code, line = script.loop
    home = node_of(code, script.space)
    if home is None or any(map(gives_locals, ast.walk(home))):
        return Sets()
    every = loops_at(home, line)
    loops = every[: -1 if innermost else None]
    own = frozenset(part.id for loop in loops for part in _targets(loop))
    arguments = _variables(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    names = _variables(sorted({part.id for loop in every for part in ast.walk(loop) if isinstance(part, ast.Name)}))
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
    """But for what the loops set by themselves."""
    few = (place for place in places if place.is_exact and (place.path or place.root not in own))
    return tuple(islice(sorted(few, key=lambda place: place.text), _MOST))


def _variables(names: Iterable[str]) -> tuple[Place, ...]:
    return tuple(Place(name, name) for name in names)


def _targets(loop: Any) -> Iterator[ast.Name]:
    """What it sets by itself."""
    for part in ast.walk(loop.target) if not isinstance(loop, ast.While) else ():
        if isinstance(part, ast.Name):
            yield part
