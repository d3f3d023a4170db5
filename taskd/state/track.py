"""The notes of flow.py: what a sequence of statements has set and read so far, and where the values go.

A place is ready once it has certainly been set. A place that is read before that is exposed. A value goes to the places
that are computed from it, or it has an effect at once (a loss whose backward is called, a learning rate). This module
does NOT know any syntax.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from taskd.state.dealings import Dealings, Dealt, Sink
from taskd.state.places import Place, Places

Way = tuple[int, ...]
"""The conditional blocks around a statement."""
_DEPTH = 4
"""How many aliases are followed in a row: a variable may be a part of a part of something."""
EFFECT: Sink = None
"""The sink of a value that has an effect."""
NOWHERE: Sink = ()


class _Edge(NamedTuple):
    """A value that goes somewhere."""

    place: Place
    sink: Place | None
    """None: it has an effect."""
    early: bool
    """It is read before the place has certainly been set."""
    inside: bool
    """Inside of the function of which matters what leaves it."""


@dataclass(slots=True)
class Track:
    """The notes along one way through the statements."""

    ready: set[Place] = field(default_factory=set)
    """Places that have certainly been set."""
    written: set[Place] = field(default_factory=set)
    exposed: set[Place] = field(default_factory=set)
    """Places that are written, and read before they have certainly been set."""
    outer: set[Place] = field(default_factory=set)
    """Places that are read before they have certainly been set, written or not."""
    altered: set[Place] = field(default_factory=set)
    """Places that are moved from their own value in another way than by adding."""
    counted: dict[Place, set[Way]] = field(default_factory=dict)
    """Places that are moved from their own value by operations that keep a number a number."""
    replaced: dict[Place, set[Way]] = field(default_factory=dict)
    """Places that are set to something other than a literal number."""
    aliases: dict[Place, list[Place]] = field(default_factory=dict)
    """Variables that are a part of something else."""
    dealings: Dealings = field(default_factory=Dealings)
    """What is called and not followed."""
    dealt: Dealt = field(default_factory=Dealt)
    """What of that matters."""
    _edges: dict[_Edge, None] = field(default_factory=dict)
    _inside: bool = False
    """What is noted now is of one function only, of which matters what leaves it."""
    _given: dict[str, tuple[frozenset[str], set[Place]]] = field(default_factory=dict)
    """For each condition: the names in it, and the places set in its block."""

    def again(self) -> None:
        """Begin again at the first statement, now knowing what is written later."""
        self.ready, self.exposed, self.outer, self.altered = set(), set(), set(), set()
        self.aliases, self._edges, self._given, self.dealings = {}, {}, {}, Dealings()

    def sets(self, place: Place) -> None:
        """The place holds another value from here on."""
        self.written.add(place)
        self._forget(place)
        if place.path and place.base in self.aliases:
            self.written.update(self.meant(place))
        if not place.path or place.module:
            self.aliases.pop(place, None)
        if place.is_exact:
            self.ready.add(place)

    def overwrites(self, place: Place) -> None:
        """Something else is written over all that was there."""
        self.changes(place)
        self.sets(place)

    def empties(self, place: Place) -> None:
        """All that was there is gone, and nothing comes in its place."""
        self.overwrites(place)
        for inside in (False, True):
            self._edges.pop(_Edge(place, place, True, inside), None)

    def changes(self, place: Place, alters: bool = False) -> None:
        """A part of the place changes, or its object changes in place."""
        found = {place, *self.meant(place)}
        self.written |= found
        self._forget(place)
        if alters:
            self.altered |= found

    def counts(self, place: Place, way: Way) -> None:
        """The place is moved from its own value."""
        for one in self.meant(place) if place.base in self.aliases else (place,):
            self.counted.setdefault(one, set()).add(way)

    def replaces(self, place: Place, way: Way) -> None:
        """The place is set to something else."""
        for one in {place, *self.meant(place)}:
            self.replaced.setdefault(one, set()).add(way)

    def counted_apart(self) -> set[Place]:
        """Return places that are only counted: neither the place nor its owner is ever set in another way."""
        return {
            place
            for place in self.counted
            if place.is_exact
            and place not in self.replaced
            and not any(one != place and one.touches(place) for one in self.written)
            and not self._is_tied(place)
        }

    def _is_tied(self, place: Place) -> bool:
        """Whether something beside it is replaced under a condition, and not always together with it. An example is an
        iterator whose position is counted here."""
        beside = (place.root, place.path[:-1], place.module)
        others = [one for one in self.replaced if (one.root, one.path[:-1], one.module) == beside]
        conditions = {way for one in others for way in self.replaced[one] if way}
        together = {(way, one) for way in self.counted[place] for one in conditions if way[: len(one)] == one}
        return bool(conditions) and (
            {way for way, _ in together} != self.counted[place] or {one for _, one in together} != conditions
        )

    def meant(self, place: Place, depth: int = _DEPTH) -> Iterator[Place]:
        """Return the places that this one stands for, if it begins with an alias."""
        base = place.base
        length = len(base.path)
        for source in self.aliases.get(base, ()) if depth else ():
            found = source.under(Place(place.text, place.root, place.path[length:]))
            yield found
            yield from self.meant(found, depth - 1)

    def reads(self, place: Place, sink: Sink) -> None:
        """The place is read, and its value goes to this sink."""
        early = False
        if not self.is_ready(place):
            self.outer.add(place)
            for one in self.written:
                if one.touches(place) and not self.is_ready(one):
                    self.exposed.add(one)
                    early = True
        for target in (None,) if sink is None else sink:
            self._edges[_Edge(place, target, early, self._inside)] = None

    def calls(self, owner: Place) -> None:
        """A method of this object is called, and followed. So it matters which object it is."""
        for one in self.written:
            if one.touches(owner) and len(one.path) <= len(owner.path) and not self.is_ready(one):
                self.exposed.add(one)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Follow the function of which matters what leaves it."""
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def is_ready(self, place: Place) -> bool:
        """Whether the place, or its owner, has certainly been set."""
        lengths = range(len(place.path) + 1)
        return any(Place("", place.root, place.path[:length], place.module) in self.ready for length in lengths)

    def leads(self, whole: Set[Place] = frozenset()) -> set[Place]:
        """Return the places whose values have an effect, at once or through other places. `whole`: objects that are
        passed on without all that is in them being used."""
        return _closed((edge.place for edge in self._edges if edge.sink is None), self._edges, whole)

    def leaves(self, leads: Iterable[Place], whole: Set[Place]) -> set[Place]:
        """Return the places whose values leave that one function and have an effect elsewhere."""
        used = Places(leads, whole)
        outer = (one for one in self._edges if not one.inside)
        first = {one.place for one in outer if one.sink is None or used.touched_by(one.sink)}
        return _closed(first, (one for one in self._edges if one.inside), whole)

    def used(self) -> set[Place]:
        """Return the places that are exposed and have an effect."""
        leads = Places(self.leads())
        every = (one.place for one in self._edges if one.early and (one.sink is None or leads.touched_by(one.sink)))
        early = Places(every)
        return {one for one in self.exposed if early.touched_by(one)}

    # ---- conditions that are asked twice ----------------------------------------------------------------------

    def given(self, condition: str) -> set[Place]:
        """Return what was set under this condition, if none of its names has been set since."""
        return self._given.get(condition, (frozenset(), set[Place]()))[1]

    def gives(self, condition: str, names: Iterable[str], places: set[Place]) -> None:
        """These places were set under this condition."""
        self._given[condition] = frozenset(names), places

    def _forget(self, place: Place) -> None:
        name = place.base.text
        for condition in [condition for condition, (names, _) in self._given.items() if name in names]:
            del self._given[condition]


def _closed(first: Iterable[Place], edges: Iterable[_Edge], whole: Set[Place]) -> set[Place]:
    """Return these places, and all whose values get there."""
    found = Places(first, whole)
    todo = {(one.place, one.sink) for one in edges if one.sink is not None}
    while more := {(place, sink) for place, sink in todo if found.touched_by(sink)}:
        for place, _ in more:
            found.add(place)
        todo -= more
    return found.every()
