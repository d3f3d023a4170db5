"""Looks at the same things again and again, and quickly: it only searches them anew when something else is there.

A search (leaves.py) names and packs all that it meets, which takes a millisecond in a usual script. Watch keeps a tree
of what the search has met. The next look compares, object by object, the ids of what is stored there. Where only plain
values are others, it packs only those.

It keeps no object of the script alive: instead of an object it keeps its id. Another object at the address of one that
is gone must have the same type and contents, or it is found out. Failure modes: values are stored later in an object
that had none, so only what can never hold values is left out; an attribute is renamed, so names are compared, too; an
object reads its attributes in a way of its own, so no code of it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from taskd.state.caches import Cached
from taskd.state.crowds import Crowd, crowd_of
from taskd.state.leaves import GENERATOR, NONE, WHICH, Met, Thing, may_hold, met_in, parts_of, plain, reader_of
from taskd.state.marks import Which, mark_of, which_of
from taskd.state.places import Spot
from taskd.state.plain import Noted, is_scalar, shortened

MOST_BYTES = 1 << 16
"""Of a longer value, a digest is kept."""


@dataclass(slots=True)
class _Node:
    """One object that the search has met."""

    name: str
    kind: type
    read: Callable[[Any], list[Any]]
    """Returns all that is stored there."""
    ids: list[int]
    """The ids of what was stored there."""
    held: list[Any]
    """The scalars among these. They are kept, so that no other value gets their ids."""
    names: dict[str, str] = field(default_factory=dict)
    """The names of the plain values, by their names as parts of this object."""
    lists: list[tuple[int, str]] = field(default_factory=list)
    """Where plain values are that may change in place, and their names."""
    inner: list[tuple[int, _Node]] = field(default_factory=list)
    exact: list[tuple[int, int]] = field(default_factory=list)
    """Where generators of random numbers are, and their ids."""
    crowd: str = ""
    """The name of what is looked at together here (crowds.py)."""
    barren: list[tuple[int, type, Which | None]] = field(default_factory=list)
    """Where objects are in which nothing is searched, and which code they are."""
    holds: bool = False
    """Whether values may be stored there later."""


class _OtherError(Exception):
    """Something else is there."""


@dataclass(slots=True)
class Watch:
    """All that one script can reach."""

    values: Noted = field(default_factory=Noted)
    """All plain values, by name."""
    generators: dict[str, Any] = field(default_factory=dict)
    """All generators of random numbers, by name."""
    dull: Set[str] = frozenset()
    """The names of things in which no value is. Looks do without them."""
    _root: _Node | None = None
    _known: Set[int] = NONE
    _but: Set[int | str | Spot] = NONE

    def look(self, things: Sequence[Thing]) -> set[str] | None:
        """Note what the values are now. Return the names of those that have changed. None: search first. `things`: all
        that were searched, less the dull ones."""
        if self._root is None:
            return None
        changed = set[str]()
        try:
            self._compare(self._root, things, changed)
        except _OtherError:
            self._root = None
            return None
        return changed

    def search(
        self, things: Sequence[Thing], known: Set[int], but: Set[int | str | Spot], shown: Set[int | str | Spot] = NONE
    ) -> None:
        """Search all things. `known`, `but`, `shown`: see met_in."""
        self._known, self._but, self.values, self.generators = known, but, Noted(), {}
        self._root = _node("", things, _read_things)
        nodes = {0: self._root}
        for one in met_in(things, known, but, shown):
            self._add(nodes, one)
        self.values = shortened(self.values, MOST_BYTES)
        lively = {id(value) for name, value in things if name in self._root.names}
        lively |= {self._root.ids[at] for at, node in self._root.inner if _is_lively(node)}
        lively |= {id(value) for name, value in things if name + WHICH in self.values or type(value) is Which}
        self.dull = {name for name, _ in things} - {name for name, value in things if id(value) in lively}
        self._root = _without(self._root, things, self.dull)

    def _add(self, nodes: dict[int, _Node], one: Met) -> None:
        owner = nodes[one.owner]
        if one.data is not None:
            self.values[one.name] = one.data
            if type(one.value) is Which:  # another function there is another object
                return
            if type(one.value) is Crowd:
                owner.crowd = one.name
                return
            owner.names[one.part] = one.name
            if one.data.startswith(GENERATOR):
                self.generators[one.name] = one.value
                owner.exact.append((_index(owner, one.value), id(one.value)))
            elif not is_scalar(one.value):
                owner.lists.append((_free_index(owner, one.value), one.name))
        elif issubclass(type(one.value), torch.Tensor):
            owner.barren.append((_index(owner, one.value), type(one.value), None))
        else:
            known = id(one.value) in self._known
            node = _node(one.name, one.value, _read_class if known else reader_of(one.value))
            nodes[id(one.value)], node.holds = node, not known and may_hold(one.value)
            if node.holds or len(node.ids) > 1:
                owner.inner.append((_index(owner, one.value), node))
            else:  # nothing is stored there, except for its class or code
                owner.barren.append((_index(owner, one.value), type(one.value), which_of(one.value)))

    def _compare(self, root: _Node, things: Sequence[Thing], changed: set[str]) -> None:
        todo: list[tuple[_Node, Any]] = [(root, things)]
        while todo:
            node, one = todo.pop()
            if type(one) is not node.kind:
                raise _OtherError
            stored = node.read(one)
            if [*map(id, stored)] != node.ids:
                self._replaced(node, one, stored, changed)
            if node.crowd:
                self._note(node.crowd, crowd_of(one), changed)
            if any(id(stored[at]) != found for at, found in node.exact):
                raise _OtherError
            for at, kind, _ in node.barren:
                if type(stored[at]) is not kind:
                    raise _OtherError
            for at, name in node.lists:
                if not is_scalar(stored[at]):  # otherwise it is noted already
                    self._note(name, stored[at], changed)
            for at, inner in node.inner:
                todo.append((inner, stored[at]))

    def _replaced(self, node: _Node, one: Any, stored: list[Any], changed: set[str]) -> None:
        """Other values are stored in this object. Note the scalars. Raises _OtherError if objects are others."""
        ids, free = [*map(id, stored)], {one[0] for one in (*node.lists, *node.barren, *node.exact)}
        if len(ids) != len(node.ids):
            raise _OtherError
        for at, (before, now) in enumerate(zip(node.ids, ids, strict=True)):
            if before != now and at not in free and not is_scalar(stored[at]):
                raise _OtherError
        if any(which is not None and which_of(stored[at]) != which for at, _, which in node.barren):
            raise _OtherError
        parts = ((name, value, None) for name, value in one) if node is self._root else None
        for name, value, _ in parts or parts_of(node.name, one, self._known, self._but):
            if is_scalar(value) and name not in self._but:
                if name not in node.names:
                    raise _OtherError
                self._note(node.names[name], value, changed)
        node.ids, node.held = ids, [*filter(is_scalar, stored)]

    def _note(self, name: str, value: Any, changed: set[str]) -> None:
        if (data := plain(value, self._known) or mark_of(value)) is None:
            raise _OtherError
        if (short := shortened({name: data}, MOST_BYTES)[name]) != self.values[name]:
            self.values[name] = short
            changed.add(name)


def _node(name: str, one: Any, read: Callable[[Any], list[Any]]) -> _Node:
    stored = read(one)
    return _Node(name, type(one), read, [*map(id, stored)], [*filter(is_scalar, stored)])


def _is_lively(node: _Node) -> bool:
    fills = node.holds or issubclass(node.kind, Cached)
    return fills or bool(node.names) or any(_is_lively(inner) for _, inner in node.inner)


def _without(root: _Node, things: Sequence[Thing], dull: Set[str]) -> _Node:
    """Return the same root less the dull things."""
    kept = [at for at, (name, _) in enumerate(things) if name not in dull]
    less, there = _node("", [things[at] for at in kept], _read_things), {at: new for new, at in enumerate(kept)}
    less.names = root.names
    less.lists = [(there[at], name) for at, name in root.lists]
    less.inner = [(there[at], node) for at, node in root.inner if at in there]
    less.exact = [(there[at], found) for at, found in root.exact if at in there]
    less.barren = [(there[at], kind, which) for at, kind, which in root.barren if at in there]
    return less


def _read_class(one: Any) -> list[Any]:
    return [type(one)]


def _read_things(things: Sequence[Thing]) -> list[Any]:
    return [value for _, value in things]


def _index(node: _Node, value: Any) -> int:
    """Return where this value is among those that are stored there."""
    return node.ids.index(id(value))


def _free_index(node: _Node, value: Any) -> int:
    """Return where this value is. If it is there more than once, return the first place that has no name yet."""
    taken, places = {at for at, _ in node.lists}, [at for at, one in enumerate(node.ids) if one == id(value)]
    return next((at for at in places if at not in taken), places[0])
