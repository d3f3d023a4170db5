"""Keeps the plain values that steps change in ways the source does not show, and gives them back.

The source shows most of what steps count and gather (counters.py, rows.py). It does not show `setattr`, a callback in a
list, a hook, a class that counts for all of its objects, a value that is None at first, or a number of NumPy. So all
plain values that the loop can reach (leaves.py) are looked at whenever a step is handed out. What differs from the
first look is kept, and a newcomer gets it. A step that is done again finds what its first attempt has found.

Failure modes: a look takes too long; a value may be a mark (an Enum), cannot be made again or has no place where it can
be set; a handler of a signal has set it meanwhile; a flag says that something was done which no repair undoes; a number
is the position of an iterator. Invariants: looks take MOST_SHARE of the time at most, or there are none; then all start
over after a death, if steps had changed something by that time (`lost_sight`). What cannot be set is named. So is a
flag that should be otherwise, unless the source shows where it is set. A flag that guards what is done only once is
left alone and named. What handlers of signals set is left alone.
"""

from __future__ import annotations

import contextvars
import os
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import CellType
from typing import Any, NamedTuple

from taskd.errors import PeerError
from taskd.state.crowds import Crowd
from taskd.state.handlers import Handlers, of_signals
from taskd.state.hooks import HOOKED
from taskd.state.leaves import GONE, HOOK, WHICH, At, Leaf, Thing, stored_leaves
from taskd.state.leftover import KINDS
from taskd.state.marks import is_of_a_function, is_of_numbers, may_be_missing
from taskd.state.places import Spot, space_of
from taskd.state.plain import Noted, can_be_given, filled, packed, shortened, unpacked
from taskd.state.remade import is_named_tuple
from taskd.state.rows import Rows
from taskd.state.watch import MOST_BYTES, Watch

MOST_SHARE = 0.1
"""The part of a training's time that looks may take."""
_NOTHING = packed(None)
_NOT_DONE = (GONE, _NOTHING, packed(False))
"""What stands for something that was not done yet."""
_TRIED = 64
"""So many looks are taken before their time is judged."""


Unlike = tuple[str, bytes, Leaf | None]
"""Something that differs from a look: its name, what it should be, and what is there."""


class Scope(NamedTuple):
    """Where looks do not look: see leaves_of."""

    known: Set[int]
    but: Set[int | str | Spot]
    shown: Set[int | str | Spot]
    """Where the source shows that the loop may set something."""


class Seen(NamedTuple):
    """What the source shows of the loop."""

    written: Set[int | str | Spot]
    """Where it may set something."""
    guards: Set[int | str | Spot]
    """Where flags are that guard what is done only once."""


@dataclass(slots=True)
class Given:
    """What became of the values that a step is to begin with."""

    missed: list[str] = field(default_factory=list)
    """Names of those that could not be given."""
    left: list[str] = field(default_factory=list)
    """Names of flags that were left alone, because they guard what is done only once."""
    own: dict[str, Any] = field(default_factory=dict)
    """Values that the script's variables have to get."""
    followed: dict[str, Any] = field(default_factory=dict)
    """Tensors that are otherwise, by name. Whether steps compute with them is seen then (leftover.py)."""


@dataclass(slots=True)
class Observed:
    """The values that one script can reach."""

    _first: Noted | None = None
    """All values, as they were at the first look."""
    _watch: Watch = field(default_factory=Watch)
    _changed: Rows = field(default_factory=dict)
    _handlers: Handlers = field(default_factory=Handlers)
    _of: Any = None
    """What the last look was for."""
    _began_ns: int = 0
    _spent_ns: int = 0
    _looks: int = 0
    _stopped: bool = False
    _hooks: Noted = field(default_factory=dict)
    """How many hooks there were at the last look."""
    results: tuple[str, ...] = ()
    """The names of what modules keep, which is mostly what their forwards have made."""
    searched: bool = False
    """Whether the last look has searched all anew, because something else was there."""

    def pays(self) -> bool:
        """Whether looks take little enough of the time. Once they do not, they never do again."""
        since_ns = time.monotonic_ns() - self._began_ns
        self._stopped = self._stopped or (self._looks >= _TRIED and self._spent_ns > MOST_SHARE * since_ns)
        return not self._stopped

    @contextmanager
    def timed(self) -> Iterator[None]:
        """What is done inside is a part of a look, and of the time that looks take."""
        begin = time.monotonic_ns()
        self._began_ns = self._began_ns or begin
        yield
        self._spent_ns += time.monotonic_ns() - begin

    def lost_sight(self) -> set[str]:
        """Return, once, the names of what steps had changed when looks have stopped. Nobody knows it from then on."""
        names = {*self._changed} if self._stopped else set[str]()
        self._changed = {} if self._stopped else self._changed
        return names

    def look(
        self,
        things: Callable[[Set[str]], Sequence[Thing]],
        scope: Callable[[], Scope],
        counts: Callable[[], Noted],
        of: Any,
    ) -> Rows:
        """Return the values that differ from those of the first look. `things`: returns all of them, less those of
        these names; `scope`: is called if all is searched anew; `counts`: returns how many hooks there are (hooks.py);
        `of`: if it is not what it was at the last look, all is searched anew."""
        names = self._watch.look(things(self._watch.dull)) if of == self._of else None
        self.searched = names is None
        if names is None:
            self._watch.search(things(frozenset()), *scope())
            self._of, self._changed, self._handlers = of, {}, of_signals()
            names = self._watch.values.keys() | (self._first or {}).keys()
        before, self._hooks = self._hooks, counts()
        if self._first is None:
            self._first = {**self._watch.values, **self._hooks}
        if self.searched or self._hooks is not before:
            names = {*names, *self._hooks, *before}
        for name in names:
            now = (self._hooks if name.startswith(HOOKED) else self._watch.values).get(name, GONE)
            if is_of_numbers(now) and name.startswith(self.results) and self._first.get(name, _NOTHING) == _NOTHING:
                self._first[name] = now  # a module has made it at its first use
            if now != self._first.get(name) and not self._handlers.sets(name):
                self._changed[name] = now
            else:
                self._changed.pop(name, None)
        self._looks += 1
        return {**self._changed}

    @property
    def first(self) -> Noted:
        """All values at the first look."""
        return self._first or {}

    def has_hooks(self, names: Set[str], told: Sequence[Rows]) -> set[str]:
        """Return those of these names that are hooks, if there were as many at the last look as is `told`."""
        hooks = {name for name in names if name.startswith(HOOKED)}
        return {name for name in hooks if all(one.get(name) == self._hooks.get(name, GONE) for one in told)}

    @property
    def generators(self) -> dict[str, Any]:
        """The generators of random numbers that the last search has met, by name."""
        return self._watch.generators

    def keep_restored(self, before: Rows, now: Rows) -> None:
        """Take what a newcomer's loaders have got between these two looks for what was there from the first: the first
        look of its life before came after a batch was loaded."""
        restored = {name: data for name, data in now.items() if before.get(name) != data != GONE}
        (self._first or {}).update(restored)

    def adopt(self, rows: Rows) -> None:
        """From now on these values count as changed. This rank's predecessor has changed them."""
        for name in rows:
            (self._first or {}).pop(name, None)
        self._of = None

    def put(self, things: Sequence[Thing], scope: Scope, rows: Rows, seen: Seen, markers_stay: bool) -> Given:
        """Give all values what a look has found. `markers_stay`: a flag or a None that the step has set is left as it
        is, since what it marks (`raised = True`) was done only once and is not to be done again."""
        given, made = Given(), list[tuple[str, Leaf]]()
        for name, wanted, leaf in self._unlike(things, scope, rows):
            if leaf is not None and type(leaf.value) is Crowd:
                continue  # what can be given of it is given by name
            if leaf is not None and wanted == _NOTHING and is_of_numbers(leaf.data):
                made.append((name, leaf))
            elif leaf is not None and is_of_a_function(leaf.data) and self._was_nothing(name, wanted, rows):
                made.append((_place_of(name), leaf))
            elif _can_be_followed(wanted, leaf):
                continue  # see check()
            elif leaf is None or wanted == GONE or not can_be_given(wanted) or _has_a_namesake(name, rows):
                (given.left if markers_stay and wanted in _NOT_DONE else given.missed).append(name)
            else:
                try:
                    value = unpacked(wanted)
                except PeerError:  # a newcomer has not imported its class yet
                    given.missed.append(name)
                else:
                    _give(name, leaf, value, seen, given, markers_stay)
        for name, leaf in [] if given.left else made:  # what is left may say that it was made
            if leaf.at is None:
                given.own[name] = None
            else:
                _set(leaf.at, None)
        return given

    def check(self, things: Sequence[Thing], scope: Scope, rows: Rows, given: Given) -> None:
        """Add to what was missed what is still otherwise. Two names may stand for one object, which got both values.
        Tensors that are otherwise are given to whoever follows them."""
        unlike = [*self._unlike(things, scope, rows)]
        given.followed = {name: leaf.value for name, wanted, leaf in unlike if leaf and _can_be_followed(wanted, leaf)}
        missed = {
            name
            for name, wanted, leaf in unlike
            if not self._may_stay(name, wanted, leaf, rows, given) and not _can_be_followed(wanted, leaf)
        }
        given.missed = sorted({*given.missed, *missed} - {*given.left})

    def _was_nothing(self, name: str, wanted: bytes, rows: Rows) -> bool:
        """Whether it says which code is somewhere, and nothing was there."""
        place, first = _place_of(name), self._first or {}
        return wanted == GONE and place != name and rows.get(place, first.get(place)) == _NOTHING

    def _may_stay(self, name: str, wanted: bytes, leaf: Leaf | None, rows: Rows, given: Given) -> bool:
        """Whether it was made where there was None, and a flag that was left may say so."""
        if not given.left or leaf is None:
            return False
        return (wanted == _NOTHING and is_of_numbers(leaf.data)) or self._was_nothing(name, wanted, rows)

    def has_lost(self, things: Sequence[Thing], scope: Scope, rows: Rows) -> bool:
        """Whether tensors or arrays are otherwise than in a look."""
        return any(is_of_numbers(wanted) for _, wanted, _ in self._unlike(things, scope, rows))

    def _unlike(self, things: Sequence[Thing], scope: Scope, rows: Rows) -> Iterator[Unlike]:
        """Return what differs from a look."""
        first, leaves = self._first or Noted(), stored_leaves(things, *scope)
        now = shortened({name: leaf.data for name, leaf in leaves.items()}, MOST_BYTES)
        for name in sorted(now.keys() | rows.keys()):
            there, wanted = now.get(name, GONE), rows.get(name, first.get(name, GONE))
            wanted = self._handlers.kept(name, wanted, there)
            if there == wanted or self._handlers.sets(name):
                continue
            if {there, wanted} == {GONE, _NOTHING}:
                continue
            if wanted == GONE and is_of_numbers(there):
                continue  # it was made at its first use, and whoever finds it uses it
            if name.startswith(HOOK) and GONE in (there, wanted):  # a hook that some step registers
                continue
            if name.startswith(HOOKED):
                continue
            if GONE in (there, wanted) and may_be_missing({there, wanted}):
                is_nothing = there == GONE and now.get(_place_of(name)) == _NOTHING
                if not (is_nothing or self._was_nothing(name, wanted, rows)):
                    continue  # otherwise None in its place says that no step has set it so far
            yield name, wanted, leaves.get(name)


def _place_of(name: str) -> str:
    """Return the name of the place, if this one says which code is there."""
    return name.removesuffix(WHICH)


def _can_be_followed(wanted: bytes, leaf: Leaf | None) -> bool:
    """Whether it is a tensor, as it should be, of which only a mark is known."""
    return leaf is not None and type(leaf.value) in KINDS and is_of_numbers(wanted) and is_of_numbers(leaf.data)


def _give(name: str, leaf: Leaf, value: Any, seen: Seen, given: Given, markers_stay: bool) -> None:
    if any(map(_may_be_a_mark, (value, leaf.value))):
        given.missed.append(name)
        return
    kinds = {type(value), type(leaf.value)}
    flags, guards = kinds & {bool, type(None)}, not kinds & {int, float} or bool(kinds & {bool, type(None)})
    if guards and _is_in(name, leaf, seen.guards):
        given.left.append(name)
    elif (bool in flags and not _is_in(name, leaf, seen.written)) or _has_an_iterator_beside(leaf):
        (given.left if markers_stay and not value else given.missed).append(name)
    elif leaf.at is None and not filled(leaf.value, value):
        given.own[name] = value
    elif type(value) is defaultdict or not _put(leaf, value):
        given.missed.append(name)


def _may_be_a_mark(value: Any) -> bool:
    """Whether it is a member of an Enum, or a named tuple of more than numbers. It may say that something was done only
    once, and no block of the source shows that as it shows it of a flag."""
    if is_named_tuple(type(value)):
        return not all(type(one) in (int, float) for one in tuple.__iter__(value))
    return issubclass(type(value), Enum)


def _has_a_namesake(name: str, rows: Rows) -> bool:
    """Whether it may be another variable of the same name, since the order of the search decides."""
    return name.endswith(", too") or f"{name}, too" in rows


def _is_in(name: str, leaf: Leaf, spots: Set[int | str | Spot]) -> bool:
    at = None if leaf.at is None else (id(leaf.at[0]), leaf.at[1])
    return name in spots or at in spots or id(leaf.value) in spots


def _has_an_iterator_beside(leaf: Leaf) -> bool:
    beside = () if leaf.at is None else [*space_of(leaf.at[0]).values()]
    return any(hasattr(type(value), "__next__") for value in beside)


def set_before_use(
    things: Sequence[Thing], hooks: Sequence[Thing], scope: Scope, written: Set[int | str | Spot]
) -> set[str]:
    """Return the names of values that are `written`, and that none of the hooks can reach: the source does not show
    when a hook uses them."""
    hooked = {(id(one.at[0]), one.at[1]) for one in stored_leaves(hooks, *scope).values() if one.at is not None}
    found = stored_leaves(things, *scope)
    return {
        name
        for name, leaf in found.items()
        if _is_in(_place_of(name.rpartition(" of ")[2]), leaf, written)
        and (leaf.at is None or (id(leaf.at[0]), leaf.at[1]) not in hooked)
    }


def _put(leaf: Leaf, value: Any) -> bool:
    """Set a leaf to this value. Return False if that is not possible."""
    return filled(leaf.value, value) or (leaf.at is not None and _set(leaf.at, value))


def _set(at: At, value: Any) -> bool:
    owner, key = at
    kind = type(owner)
    if kind is CellType:
        owner.cell_contents = value
    elif kind is contextvars.ContextVar:
        owner.set(value)
    elif issubclass(kind, type):
        type.__setattr__(owner, key, value)
    elif issubclass(kind, dict) and key in owner:
        dict.__setitem__(owner, key, value)
    elif issubclass(kind, (list, deque)) and type(key) is int:
        (list if issubclass(kind, list) else deque).__setitem__(owner, key, value)
    elif owner is os.environ:
        os.environ[key] = value
    elif key in space_of(owner):
        space_of(owner)[key] = value
    elif type(key) is str and type(slot := getattr(kind, key, None)).__name__ == "member_descriptor":
        slot.__set__(owner, value)  # type: ignore[union-attr]
    else:
        return False
    return True
