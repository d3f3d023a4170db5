"""What a loop calls without that the call can be followed: for what it does, or for what it answers.

    base.execute(text)                  # told: nobody uses the result
    loss = loss * base.mean()           # asked: the result has an effect

A variable that a call has made stands for what was called: `cursor.execute(text)` tells `base`, if `cursor` is
`base.cursor()`. So does a variable that is set to a part of something, or to a method. A result that is only shown, or
that goes into a variable which has no effect, asks nothing. A list or a tensor that a call has given is its own: to
append to it tells nobody. This module does NOT know any values or syntax.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from taskd.state.places import Place, Places

Sink = tuple[Place, ...] | None


class Dealt(NamedTuple):
    """Objects, or functions and methods of them, that calls reach which are not followed."""

    told: frozenset[Place] = frozenset()
    """Nobody uses the result. They are found already set."""
    asked: frozenset[Place] = frozenset()
    """The result has an effect. They are found already set."""
    around: frozenset[Place] = frozenset()
    """The result has an effect, in the loop or in the code around it."""


@dataclass(slots=True)
class Dealings:
    """The notes along one way through the statements."""

    _told: set[Place] = field(default_factory=set)
    """What is called."""
    _edited: set[Place] = field(default_factory=set)
    """What is called by a name that lists, dicts and tensors have. It tells what its variables are another name of."""
    _given: set[Place] = field(default_factory=set)
    """What such calls get."""
    _asks: set[tuple[Place, Place | None]] = field(default_factory=set)
    """What is asked, or given to a call, and where the answer goes. None: it has an effect at once."""
    _made_from: dict[Place, set[Place]] = field(default_factory=dict)
    """For each variable: what has made it, or what it is a part of."""
    _by_calls: set[Place] = field(default_factory=set)
    """Those of these variables that a call has made."""

    def is_made(self, place: Place, sources: Iterable[Place], by_call: bool) -> None:
        """The place gets a value that is made from these."""
        if found := {source for source in sources if source != place}:
            self._made_from.setdefault(place, set()).update(found)
            self._by_calls |= {place} if by_call else set()

    def tells(self, called: Iterable[Place], given: Iterable[Place], edits: bool) -> None:
        """These are called, and get those, and nobody uses the result. `edits`: by a name that a list or a tensor
        has."""
        (self._edited if edits else self._told).update(called)
        self._given.update(given)

    def asks(self, places: Iterable[Place], sink: Sink) -> None:
        """These are called, or given to a call, whose result goes to this sink."""
        targets = (None,) if sink is None else sink
        self._asks |= {(place, target) for place in places for target in targets}

    def told(self) -> set[Place]:
        """Return what is told something."""
        edited = self._with_sources(self._edited, self._by_calls)[0]
        return self._with_sources(self._told)[0] | edited | self._given

    def asked(self, leads: Set[Place]) -> set[Place]:
        """Return what is asked for something that has an effect. `leads`: the places whose values have one."""
        told = Places(self._with_sources(self._told)[1])  # that these have an effect says only that they are told
        effects = Places(one for one in leads if not told.touched_by(one))
        return self._with_sources(place for place, sink in self._asks if sink is None or effects.touched_by(sink))[0]

    def _with_sources(self, places: Iterable[Place], but: Set[Place] = frozenset()) -> tuple[set[Place], set[Place]]:
        """Return these places with what their variables were made from, and these variables. `but`: variables that are
        not followed."""
        found, variables, todo = set[Place](), set[Place](), [*places]
        while todo:
            if (place := todo.pop()) in found:
                continue
            found.add(place)
            for length in range(len(place.path) + 1):
                owner = Place("", place.root, place.path[:length], place.module)
                if owner not in but and (sources := self._made_from.get(owner)):
                    variables.add(owner)
                    todo += sources
        return found, variables
