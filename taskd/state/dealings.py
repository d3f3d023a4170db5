"""What a loop calls without that the call can be followed: for what it does, or for what it answers.

    base.execute(text)                  # told: nobody uses the result
    loss = loss * base.mean()           # asked: the result has an effect

A variable that a call has made stands for what was called: `cursor.execute(text)` tells `base`, if `cursor` is
`base.cursor()`. So does a variable that is set to a part of something, or to a method. A result that is only shown, or
that goes into a variable which has no effect, asks nothing. This module does NOT know any values or syntax.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from typing import NamedTuple

from taskd.state.places import Place

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
    _asks: set[tuple[Place, Place | None]] = field(default_factory=set)
    """What is asked, and where the answer goes. None: it has an effect at once."""
    _made_from: dict[Place, list[Place]] = field(default_factory=dict)
    """For each variable: what has made it, or what it is a part of."""
    _stand_for: set[Place] = field(default_factory=set)
    """Those of these variables that are told or asked something."""

    def is_made(self, place: Place, sources: list[Place]) -> None:
        """The place gets a value that is made from these."""
        self._made_from[place] = [source for source in sources if source != place]

    def tells(self, places: Iterable[Place]) -> None:
        """These are called, or given to a call, whose result nobody uses."""
        self._told |= self._all_of(places)

    def asks(self, places: Iterable[Place], sink: Sink) -> None:
        """These are called, or given to a call, whose result goes to this sink."""
        targets = (None,) if sink is None else sink
        self._asks |= {(place, target) for place in self._all_of(places) for target in targets}

    def told(self) -> set[Place]:
        """Return what is told something."""
        return self._told

    def asked(self, leads: Set[Place]) -> set[Place]:
        """Return what is asked for something that has an effect. `leads`: the places whose values have one."""
        effects = [one for one in leads if not any(map(one.touches, self._stand_for))]
        return {place for place, sink in self._asks if sink is None or any(map(sink.touches, effects))}

    def _all_of(self, places: Iterable[Place]) -> set[Place]:
        """Return these places and what their variables were made from."""
        found, todo = set[Place](), [*places]
        while todo:
            if (place := todo.pop()) in found:
                continue
            found.add(place)
            for length in range(len(place.path) + 1):
                owner = Place("", place.root, place.path[:length], place.module)
                if sources := self._made_from.get(owner):
                    self._stand_for.add(owner)
                    todo += sources
        return found
