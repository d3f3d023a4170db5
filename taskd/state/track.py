"""What a row of statements has set and read so far, and where the values go: the notes that flow.py takes.

A place is ready once it was surely set; what is read before is exposed. A value goes to the places that it is reckoned
into, or it has an effect at once (a loss that is called backward, a learning rate). It knows no syntax.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from taskd.state.places import Place

Sink = tuple[Place, ...] | None
Way = tuple[int, ...]
"""The blocks, each under its condition, in which a statement stands."""
_DEPTH = 4
"""A part of a part of something."""
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
    outer: set[Place] = field(default_factory=set)
    """Read before they were surely set, written or not."""
    altered: set[Place] = field(default_factory=set)
    """Moved from their own value, otherwise than by adding something."""
    counted: dict[Place, set[Way]] = field(default_factory=dict)
    """Moved from their own value, by whatever keeps a number a number."""
    replaced: dict[Place, set[Way]] = field(default_factory=dict)
    """Set to something else than a number that stands there."""
    aliases: dict[Place, list[Place]] = field(default_factory=dict)
    """Variables that are a part of something else."""
    _edges: dict[tuple[Place, Place | None, bool], None] = field(default_factory=dict)
    """What goes where (None: it has an effect), and whether it was read before it was surely set."""
    _given: dict[str, tuple[frozenset[str], set[Place]]] = field(default_factory=dict)
    """By a condition: the names in it, and what was set where it held."""

    def again(self) -> None:
        """From the first statement, knowing what the last one writes."""
        self.ready, self.exposed, self.outer, self.altered = set(), set(), set(), set()
        self.aliases, self._edges, self._given = {}, {}, {}

    def sets(self, place: Place) -> None:
        """It is another one from here on."""
        self.written.add(place)
        self._forget(place)
        if place.path and place.base in self.aliases:
            self.written.update(self.meant(place))
        if not place.path or place.module:
            self.aliases.pop(place, None)
        if place.is_exact:
            self.ready.add(place)

    def changes(self, place: Place, alters: bool = False) -> None:
        """A part of it is, or what it holds is."""
        found = {place, *self.meant(place)}
        self.written |= found
        self._forget(place)
        if alters:
            self.altered |= found

    def counts(self, place: Place, way: Way) -> None:
        """It is moved from its own value."""
        for one in self.meant(place) if place.base in self.aliases else (place,):
            self.counted.setdefault(one, set()).add(way)

    def replaces(self, place: Place, way: Way) -> None:
        """It is set to something else."""
        for one in {place, *self.meant(place)}:
            self.replaced.setdefault(one, set()).add(way)

    def counted_apart(self) -> set[Place]:
        """What is counted and nothing else: neither it nor what it is a part of is ever set otherwise."""
        return {
            place
            for place in self.counted
            if place.is_exact
            and place not in self.replaced
            and not any(one != place and one.touches(place) for one in self.written)
            and not self._is_tied(place)
        }

    def _is_tied(self, place: Place) -> bool:
        """Whether something beside it is replaced under a condition, and they do not always go together: as the
        iterator is whose place it is."""
        beside = (place.root, place.path[:-1], place.module)
        others = [one for one in self.replaced if (one.root, one.path[:-1], one.module) == beside]
        conditions = {way for one in others for way in self.replaced[one] if way}
        together = {(way, one) for way in self.counted[place] for one in conditions if way[: len(one)] == one}
        return bool(conditions) and (
            {way for way, _ in together} != self.counted[place] or {one for _, one in together} != conditions
        )

    def meant(self, place: Place, depth: int = _DEPTH) -> Iterator[Place]:
        """What this is a part of, if it begins with such a variable."""
        base = place.base
        length = len(base.path)
        for source in self.aliases.get(base, ()) if depth else ():
            found = source.under(Place(place.text, place.root, place.path[length:]))
            yield found
            yield from self.meant(found, depth - 1)

    def reads(self, place: Place, sink: Sink) -> None:
        """Its value goes there."""
        early = False
        if not self.is_ready(place):
            self.outer.add(place)
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

    def leads(self) -> set[Place]:
        """What has an effect, at once or through others."""
        leads = {place for place, sink, _ in self._edges if sink is None}
        todo = {(place, sink) for place, sink, _ in self._edges if sink is not None and place not in leads}
        while found := {place for place, sink in todo if any(sink.touches(one) for one in leads)}:
            leads |= found
            todo = {(place, sink) for place, sink in todo if place not in found}
        return leads

    def used(self) -> set[Place]:
        """What is exposed and has an effect."""
        leads = self.leads()
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
