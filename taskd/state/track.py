"""What a row of statements has set and read so far, and where the values go: the notes that flow.py takes.

A place is ready once it was surely set; what is read before is exposed. A value goes to the places that it is reckoned
into, or it has an effect at once (a loss that is called backward, a learning rate). It knows no syntax.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from taskd.state.places import Place

Sink = tuple[Place, ...] | None
EFFECT: Sink = None
"""Where a value goes that does something."""
NOWHERE: Sink = ()


@dataclass(slots=True)
class Track:
    """Along one way through the statements."""

    ready: set[Place] = field(default_factory=set)
    """Surely set."""
    written: set[Place] = field(default_factory=set)
    exposed: set[Place] = field(default_factory=set)
    """Written, and read before they were surely set."""
    altered: set[Place] = field(default_factory=set)
    """Moved from their own value, otherwise than by adding something."""
    aliases: dict[Place, list[Place]] = field(default_factory=dict)
    """Variables that are a part of something else."""
    _edges: dict[tuple[Place, Place | None, bool], None] = field(default_factory=dict)
    """What goes where (None: it has an effect), and whether it was read before it was surely set."""
    _given: dict[str, tuple[frozenset[str], set[Place]]] = field(default_factory=dict)
    """By a condition: the names in it, and what was set where it held."""

    def again(self) -> None:
        """From the first statement, knowing what the last one writes."""
        self.ready, self.exposed, self.altered = set(), set(), set()
        self.aliases, self._edges, self._given = {}, {}, {}

    def sets(self, place: Place) -> None:
        """It is another one from here on."""
        self.written.add(place)
        self._forget(place)
        if place.path and place.base in self.aliases:
            self.written.update(self._meant(place))
        if not place.path or place.module:
            self.aliases.pop(place, None)
        if place.is_exact:
            self.ready.add(place)

    def changes(self, place: Place, alters: bool = False) -> None:
        """A part of it is, or what it holds is."""
        found = {place, *self._meant(place)}
        self.written |= found
        self._forget(place)
        if alters:
            self.altered |= found

    def _meant(self, place: Place) -> Iterable[Place]:
        base = place.base
        length = len(base.path)
        for source in self.aliases.get(base, ()):
            yield source.under(Place(place.text, place.root, place.path[length:]))

    def reads(self, place: Place, sink: Sink) -> None:
        """Its value goes there."""
        early = False
        if not self.is_ready(place):
            for one in self.written:
                if one.touches(place) and not self.is_ready(one):
                    self.exposed.add(one)
                    early = True
        for target in (None,) if sink is None else sink:
            self._edges[place, target, early] = None

    def is_ready(self, place: Place) -> bool:
        """Whether it was surely set, or what it is a part of was."""
        lengths = range(len(place.path) + 1)
        return any(Place("", place.root, place.path[:length], place.module) in self.ready for length in lengths)

    def used(self) -> set[Place]:
        """What is exposed and has an effect, at once or through others."""
        leads = {place for place, sink, _ in self._edges if sink is None}
        todo = {(place, sink) for place, sink, _ in self._edges if sink is not None and place not in leads}
        while found := {place for place, sink in todo if any(sink.touches(one) for one in leads)}:
            leads |= found
            todo = {(place, sink) for place, sink in todo if place not in found}
        early = {
            place
            for place, sink, early in self._edges
            if early and (sink is None or any(sink.touches(one) for one in leads))
        }
        return {one for one in self.exposed if any(one.touches(place) for place in early)}

    # ---- conditions that are asked twice ----------------------------------------------------------------------

    def given(self, condition: str) -> set[Place]:
        """What was set where this held, if nothing in it was set since."""
        return self._given.get(condition, (frozenset(), set[Place]()))[1]

    def gives(self, condition: str, names: Iterable[str], places: set[Place]) -> None:
        """These were set where it held."""
        self._given[condition] = frozenset(names), places

    def _forget(self, place: Place) -> None:
        name = place.base.text
        for condition in [condition for condition, (names, _) in self._given.items() if name in names]:
            del self._given[condition]
