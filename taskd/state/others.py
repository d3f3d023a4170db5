"""All plain values that the loop of a script can reach, apart from its counters and rows (variables.py).

observed.py compares and gives these values. This module says what there is to look at: what the loop finds and uses,
what the loops around it use, and what is in modules and hooks (inside.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from taskd.state import marks, rng
from taskd.state.carrying import Attribute
from taskd.state.counters import Loop
from taskd.state.graphs import Graphs
from taskd.state.hooks import Hooks
from taskd.state.inside import Inside
from taskd.state.leaves import GENERATOR, GONE, WHICH, Thing, met_in
from taskd.state.look import Look
from taskd.state.observed import Given, Observed, Scope, Seen, set_before_use
from taskd.state.places import NUMBERS, Place, Spot, listed_at, reached, space_of
from taskd.state.plain import is_scalar
from taskd.state.rows import Beside
from taskd.state.script import ELSEWHERE, Script, Values, spots_of_name, stack_of
from taskd.state.sealed import sealed_at, streams_at
from taskd.state.sources import own_names

INSIDE_EVERY = 64
"""In every step whose number is a multiple of this, modules are searched for hooks anew."""
Spots = set[int | str | Spot]
_GETS = ((True, "get"), (True, "get_nowait"))
"""What ends the place of a method that takes something from a queue."""
_QUEUES = ("queue", "_queue", "multiprocessing.queues", "torch.multiprocessing.queue")
"""Modules of queues."""


@dataclass(slots=True)
class Others:
    """The other values of one session's script."""

    loops: AskingLoops
    known: Callable[[], Set[int]] = frozenset
    """Returns the ids of objects that are restored in another way."""
    uses: Callable[[Set[int], Set[str]], list[Thing]] = field(default=lambda _known, _but: [])
    """Returns what the loops around this one find and use, but no things of these names."""
    looks_inside: Callable[[], Inside] = Inside
    """Returns what is inside of the registered modules and optimizers."""
    given: Given = field(default_factory=Given)
    """What became of the values that steps have changed, when a step was done again."""
    observed: Observed = field(default_factory=Observed)
    graphs: Graphs = field(default_factory=Graphs)
    left_out: dict[str, int] = field(default_factory=dict)
    """The lengths of rows that the last look has left out (rows.py)."""
    _inside: Inside = field(default_factory=Inside)
    _carrying: tuple[Attribute, ...] = ()
    _reading: tuple[Attribute, ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    _all: tuple[Set[int], Inside, Set[int]] | None = None

    def look_inside(self, number: int, is_new: bool) -> None:
        """See what modules and optimizers keep now and then. `is_new`: the loop is another one."""
        if is_new:
            self.graphs.loop_begins()
        if is_new or number % INSIDE_EVERY == 0:
            self._look_inside()
        elif self.observed.pays() and not self._inside.shape.stays:
            with self.observed.timed():
                self._look_inside()

    def _look_inside(self) -> None:
        self._inside = self.looks_inside()
        self.observed.results = tuple(name for name, _, _ in self._inside.kept)
        left = self._left()
        forwards = self._inside.of_forwards
        self._carrying = (*forwards.handed_on, *left)
        self._reading = tuple(one for one in forwards.read if one not in left)

    def look(self, look: Look) -> None:
        """Add the other values to this look, if looks take little enough time."""
        if not self.observed.pays():
            return
        of = (look.place, look.loop, *map(tuple, look.values), *look.rows)
        counts = partial(self.hooks.look, self._inside.owners)
        with self.observed.timed():
            look.others = self.observed.look(self._reached, lambda: self._scope(look), counts, of)
        if self.observed.searched:
            rng.follow_by_name(self.observed.generators)

    def follow_generators(self) -> None:
        """From now on, put back the generators of random numbers that are there now: steps may have made some, or
        replaced them."""
        self._follow(self._reached())

    def _follow(self, things: list[Thing]) -> None:
        met = met_in(things, self.all_known(), shown=frozenset())
        rng.follow_by_name({one.name: one.value for one in met if (one.data or b"").startswith(GENERATOR)})

    def put(self, look: Look, markers_stay: bool = False) -> None:
        """Give all values what this look has found. For `markers_stay` see Observed.put."""
        self.given = Given()
        if look.others is None:  # looks take too long, and this is a step of later
            shown = set[str]().union(*(loop.kept.shown for _, loop in self.loops.asking()))
            self.given.missed = sorted({*look.moved} - look.rows.keys() - shown - self.set_before_use(look))
            return
        marks.take_anew()
        self._inside = self.looks_inside()
        self.hooks.expect(self.observed.first, look.others, self._inside.owners)
        loops = [*self.loops.asking()]
        written = Spots().union(*(spots_of_places(at, one, one.written) for at, one in loops))
        guards = Spots().union(*(spots_of_places(at, one, one.guards) for at, one in loops))
        things = self._reached()
        self._follow(things)
        given = self.observed.put(things, self._scope(look), look.others, Seen(written, guards), markers_stay)
        for at, one in loops:
            at.give({place: given.own[place.text] for place in _named(at, one) if place.text in given.own})
        self.observed.check(self._reached(), self._scope(look), look.others, given)
        if given.missed:  # a list that is only shown, and holds tensors by now, is left out (rows.py)
            longer = {name for _, one in loops for name in one.kept.shown if look.others.get(name) == GONE}
            given.missed = sorted({*given.missed} - longer - self.set_before_use(look))
        self.given = given

    @property
    def carried(self) -> dict[str, Any]:
        """What forwards of registered modules, or the loop, have left for later forwards, by name, except for what is
        put back with the modules."""
        there = ((name, space_of(module).get(key)) for name, module, key in self._carrying)
        return {name: value for name, value in there if value is not None and not is_scalar(value)}

    @property
    def unmade(self) -> set[str]:
        """The names of what they may leave, and have not left here so far. They may make it at its first use."""
        return {name for name, _, _ in self._carrying} - self.carried.keys()

    def _left(self) -> list[Attribute]:
        """Return what forwards read and the loop sets."""
        found = set[Spot]()
        for script, loop in self.loops.asking():
            for place, root in script.rooted([one for one in loop.written if one.path and one.path[-1][0]]):
                owner = replace(place, path=place.path[:-1]).held(root, frozenset())
                found.add((id(owner), place.path[-1][1]))
        forwards = self._inside.of_forwards
        return [one for one in (*forwards.read, *forwards.perhaps) if (id(one[1]), one[2]) in found]

    def has_lost(self, look: Look) -> bool:
        """Whether something is otherwise than this look has found it, and only marks show that: it cannot be given."""
        return look.others is not None and self.observed.has_lost(self._reached(), self._scope(look), look.others)

    def finds(self, known: Set[int] = frozenset(), but: Set[str] = frozenset()) -> list[Thing]:
        """Return what the loop that begins here finds and uses, but nothing inside of known objects. `but`: names of
        things that are not needed."""
        things = dict[str, Any]()
        for script, loop in self.loops.asking():
            things |= reached(script.rooted([place for place in loop.found if place.text not in but]), known)
        return [(name, value) for name, value in things.items() if name not in but]

    def queues(self) -> list[str]:
        """Return the names of queues from which the current loop takes something, according to its source."""
        found = set[str]()
        for script, loop in self.loops.asking():
            gets = [place for place in loop.found if place.path and place.path[-1] in _GETS]
            owners = [replace(place, text=place.text.rpartition(".")[0], path=place.path[:-1]) for place in gets]
            found |= {place.text for place, root in script.rooted(owners) if _is_queue(type(place.found(root)))}
        return sorted(found)

    def written(self) -> Spots:
        """Return where the current loop may set something or change it in place, according to its source."""
        found = [
            spots_of_places(script, loop, (*loop.written, *loop.counts.places)) for script, loop in self.loops.asking()
        ]
        return Spots().union(*found)

    def set_before_use(self, look: Look) -> set[str]:
        """Return the names of values that the source shows to be set before each use."""
        spots, texts = Spots(), set[str]()
        for script, loop in self.loops.asking():
            used = (*loop.exposed, *loop.carried, *loop.perhaps, *loop.computes)
            free = [place for place in loop.written if not any(place.touches(one) for one in used)]
            spots |= spots_of_places(script, loop, free)
            texts |= {place.text + WHICH for place in free}
        absent = texts & (look.others or {}).keys()  # no step of this process has set it so far
        return absent | set_before_use(self._reached(), self._inside.hooks, self._scope(look), spots)

    def beside(self) -> Beside:
        """Return what there is beside the script's own places."""
        attributes = (*self._carrying, *(one for one in self._inside.of_forwards.perhaps if one not in self._carrying))
        return Beside(
            self.all_known(), self._inside.places, attributes, self._reading, self.graphs.is_cut, self.left_out
        )

    def all_known(self) -> Set[int]:
        """Return the ids of all objects that are restored in another way."""
        own = self.known()
        if self._all is None or self._all[0] != own or self._all[1] is not self._inside:
            self._all = own, self._inside, {*own, *self._inside.put_back}
        return self._all[2]

    def _scope(self, look: Look) -> Scope:
        return Scope(self.all_known(), self._handled(look), self.written())

    def _reached(self, but: Set[str] = frozenset()) -> list[Thing]:
        """Return all things from which the loop can reach something. `but`: names of things that are not needed."""
        known = self.all_known()
        used = self.uses(known, but)
        things = [*self.finds(known, {name for name, _ in used} | but), *used, *self._inside.things]
        return [(name, value) for name, value in things if name not in but]

    def _handled(self, look: Look) -> Spots:
        """Return where this look's counters and rows are, which are given in another way."""
        spots = Spots()
        values: Values | None = look.values
        for script, loop in self.loops.asking():
            counts = [*(place for one in (loop.counts, loop.handed_on) for place in one.places)]
            there = look.rows.keys() - loop.kept.shown  # what is only shown here may be used by another name
            places = [place for place in loop.rows if place.text in there]
            places += [place for place in counts if values is None or place.text in values[ELSEWHERE]]
            spots |= spots_of_places(script, loop, places)
            for (owner, name), value in script.held(loop.counts, loop.handed_on):
                if type(value) in NUMBERS if values is None else any(name in one for one in values):
                    spots |= spots_of_name(script, owner, name)
            for (owner, name), _ in script.held(loop.doubtful):  # these stand for something that no repair puts back
                spots |= spots_of_name(script, owner, name)
            values = None  # of the functions around the loop's, no look has the values
        return spots


def hooks_unlike(others: Others, is_whole: bool) -> list[str]:
    """Return where a hook is missing in a step that is done again, or there is one too many. `is_whole`: see Hooks."""
    return others.hooks.unlike(others.looks_inside().owners, is_whole) if others.hooks.expects else []


def lost_sight_of(others: Others, looks: Sequence[Look]) -> list[str]:
    """Return, once, the names of what steps change and nobody looks at any more, because that takes too long."""
    names = others.observed.lost_sight()
    return sorted(names - others.set_before_use(looks[-1])) if names else []


def sealed_things(others: Others) -> list[str]:
    """Return the names of what steps change and use, or hand on, though nobody can see what is in it."""
    found, told, asked, known = set[str](), dict[int, str](), set[int](), others.all_known()
    for script, loop in others.loops.asking():
        sealed, fresh = partial(sealed_at, script, known), {place.root for place in loop.written if not place.path}
        hidden = fresh | (own_names(script.loop[0]) if loop.shares_locals else frozenset())
        told |= sealed([place for place in loop.written if place.path and place.root not in hidden], called=False)
        told |= {**sealed(loop.dealt.told), **sealed(loop.carried)}
        asked |= sealed([place for place in loop.found if place not in loop.dealt.told], called=False).keys()
        asked |= sealed(loop.dealt.around).keys()
        found |= streams_at(script, known, loop.dealt.asked)
    return sorted(found | {name for one, name in told.items() if one in asked})


def looked_at(others: Others, look: Look) -> set[int]:
    """Return the ids of what steps have changed, and this look sees to."""
    if look.others is None:
        return set()
    met = met_in(others._reached(), *others._scope(look))
    return {id(one.value) for one in met if one.name in look.others}


def _is_queue(kind: type) -> bool:
    """Whether it is a queue between threads or processes."""
    return any(one.__module__ in _QUEUES and hasattr(one, "put") for one in kind.__mro__)


def _named(script: Script, loop: Loop) -> Iterator[Place]:
    """Return the places that the loop finds, or their owners, by the names of their values (Place.reached)."""
    for place, root in script.rooted(loop.found):
        if (there := place.reached(root)) is not None:
            owners = (replace(place, text=there[0], path=place.path[:at]) for at in range(len(place.path) + 1))
            yield from (one for one in owners if one.reached(root) == there)


def spots_of_places(script: Script, loop: Loop, places: Sequence[Place]) -> Spots:
    """Return where these places are, and the ids of the containers there."""
    spots, own = Spots(), own_names(script.loop[0]) if loop.shares_locals else frozenset[str]()
    spots |= {place.root for place in places if place.root in own}  # its locals must not be looked at
    for place, root in script.rooted([place for place in places if place.root not in own]):
        if place.path:
            spots.update(place.spots(root))
        else:
            spots |= {place.root, (id(script.space), place.root), *listed_at(root)}
    return spots


class AskingLoops:
    """The loops of the script's functions. Each is looked at once."""

    def __init__(self) -> None:
        self._loops: dict[Any, tuple[Loop, Any]] = {}
        """By the lines at which the script's functions are. Their code is kept, since its ids are the keys."""

    def of(self, script: Script) -> Loop:
        """Return the loop in which this function asks for a step."""
        stack = stack_of(script)
        key = tuple((id(code), line) for code, line in stack)  # to hash a code object takes long
        if key not in self._loops:
            self._loops[key] = script.counters(), stack
        return self._loops[key][0]

    def asking(self) -> Iterator[tuple[Script, Loop]]:
        """Return the function that asks for a step, and those that iterate over it, each with its loop."""
        script = Script.asking()
        while script is not None:
            yield script, self.of(script)
            script = script.user()
