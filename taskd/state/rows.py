"""What steps gather or hand on: lists, deques and dicts of numbers and texts (`losses.append(...)`), and tensors.

They are each rank's own: no other rank can know them. So a rank that has not seen a step's end lacks what it would have
gathered there. This module keeps nothing. variables.py says when rows are looked at and put back. Rows that are only
shown are put back, too, as long as they are short: a newcomer would show half of a curve. Of lists of tensors, those
that are only shown are left out, since to look at them takes long.

Tensors and arrays are rows if the source shows that steps hand them on (`hidden = out.detach()`), if they are small,
and if nothing else has the same memory. What a step has changed in place is put back in place, since other code may
have the same tensor. What it has replaced is replaced. Failure modes: two places have the same tensor, and get one
each; a newcomer's own tensor stands somewhere else, too. So tensors that are shared are no rows, and a newcomer gets a
tensor in place only if no step has replaced it so far.
"""

from __future__ import annotations

import re
import sys
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from itertools import chain, count
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from taskd.state.carrying import Attribute
from taskd.state.counters import Loop, name_of
from taskd.state.graphs import has_graph
from taskd.state.held import place_of
from taskd.state.places import NOTHING, space_of
from taskd.state.plain import MOST_OF_TENSORS, MOST_SHOWN, filled, is_by_id, is_kept, may_be_row, rows_of, unpacked
from taskd.state.script import Script, Values
from taskd.state.tree import bytes_of

Rows = dict[str, bytes]
"""Packed rows by the text of their place."""
Leaves = dict[str, list["weakref.ref[Any]"]]
"""The tensors and arrays in each row, in order."""
_NUMBERS = frozenset((int, float, str))
_CONTAINERS = (list, deque, dict, defaultdict, OrderedDict, Counter)
Which = tuple[str, int]
"""The name of a row, and the number of a tensor in it."""
ALL = -1
"""Stands for all tensors of a row."""
Take = Callable[[Any, Any], Any]
"""Returns the tensor to be stored. It gets the one that is there, and one with the wanted contents."""


class Gathered(NamedTuple):
    """The rows at one moment."""

    rows: Rows
    leaves: Leaves
    graphs: dict[str, list[torch.Tensor]]
    """The tensors with graphs of gradients in what is a row, or may become one."""
    left_out: dict[str, int]
    """The lengths of rows that are only shown, and that are too long or hold something else."""


class Beside(NamedTuple):
    """What there is beside the script's own places."""

    known: Set[int] = frozenset()
    """The ids of objects that are restored in another way."""
    places: Set[int] = frozenset()
    """The addresses of their tensors."""
    attributes: tuple[Attribute, ...] = ()
    """What forwards of modules hand on."""
    reading: tuple[Attribute, ...] = ()
    """What else forwards read."""
    is_cut: Callable[[str], bool] = lambda _: False
    """Whether no gradient flows through what has this name (graphs.py)."""
    left_out: Mapping[str, int] = MappingProxyType({})
    """The lengths of rows that were left out so far."""


def rows_at(script: Script, loop: Loop, beside: Beside) -> Gathered:
    """Return the rows of this loop as they are now. A dict with ids of known objects as keys is no row: in another
    process it would have others."""
    there = script.everything(loop.rows, beside.known) if loop.rows else {}
    plain = {name: value for name, value in there.items() if not is_by_id(value, beside.known)}
    found = {name: rows_of(value) for name, value in plain.items() if name not in loop.kept.shown}
    shown, left_out = _shown({name: plain[name] for name in plain.keys() & loop.kept.shown}, beside.left_out)
    found |= shown
    more = {name: value for name, value in there.items() if name not in loop.kept.uncertain}
    more |= {name: value for name, value in plain.items() if name in loop.kept.shown and _is_leaf(value)}
    for name, owner, key in beside.attributes:
        value = space_of(owner).get(key, NOTHING)
        if name in there:  # another thing of the script has this name
            found.pop(name, None)
            more.pop(name, None)
        elif may_be_row(value):
            more[name] = value
    leaves = {name: [*_leaves_of(value)] for name, value in more.items() if may_be_row(value)}
    graphs = {name: some for name, one in leaves.items() if (some := [*filter(has_graph, one)])}
    empty = {name for name, _, _ in beside.attributes if not leaves.get(name, True) and not len(more[name])}
    cut = {name for name in graphs if beside.is_cut(name)}
    whole = {
        name: one for name, one in leaves.items() if (one or name in empty) and (name in cut or name not in graphs)
    }
    others = (space_of(owner).get(key) for _, owner, key in beside.reading)
    leaves = _apart(whole, beside.places, {place_of(one) for one in others if _is_leaf(one)})
    found |= {name: rows_of(more[name], tensors=True) for name in leaves if not is_by_id(more[name], beside.known)}
    rows = {name: data for name, data in found.items() if data is not None}
    there_are = {name: [*map(weakref.ref, one)] for name, one in leaves.items() if one and name in rows}
    return Gathered(rows, there_are, graphs, {name: one for name, one in left_out.items() if name not in rows})


def _shown(things: dict[str, Any], before: Mapping[str, int]) -> tuple[Rows, dict[str, int]]:
    """Return those rows that are short enough, and the lengths of the others. `before`: those of before. What was too
    long is not packed again."""
    found, left_out, left = Rows(), dict[str, int](), MOST_SHOWN
    for name in sorted(name for name, value in things.items() if type(value) in _CONTAINERS):
        length = _length(things[name])
        data = rows_of(things[name]) if length < before.get(name, length + 1) else None
        if data is not None and len(data) <= left:
            found[name] = data
            left -= len(data)
        elif length:
            left_out[name] = length
    return found, left_out


def _length(value: Any) -> int:
    """Return how long a container is, with those in it if it is a dict."""
    inside = dict.values(value) if isinstance(value, dict) else ()
    return len(value) + sum(len(one) for one in inside if type(one) in _CONTAINERS)


def put_rows(script: Script, loop: Loop, beside: Beside, rows: Rows, take: Callable[[str, bool], Take]) -> None:
    """Give the rows of this loop these contents, if they have others. `take`: returns, for a row's name, what is done
    about its tensors; it is told whether nothing shares those that are there."""
    if not rows:
        return
    now, leaves, *_ = rows_at(script, loop, beside)
    changed = [place for place in loop.rows if place.text in rows and now.get(place.text) != rows[place.text]]
    there = script.everything(changed, beside.known)
    script.give(
        {
            one: _given(there.get(one.text), unpacked(rows[one.text]), take(one.text, one.text in leaves))
            for one in changed
        }
    )
    for name, owner, key in beside.attributes:
        if name in rows and now.get(name) != rows[name]:
            space = space_of(owner)
            given = _given(space.get(key), unpacked(rows[name]), take(name, name in leaves))
            if not filled(space.get(key), given):
                space[key] = given


def shown_rows(script: Script, loop: Loop, known: Set[int]) -> set[str]:
    """Return the names of rows that are only shown, whether they are there or not."""
    there = script.everything([place for place in loop.rows if place.text in loop.kept.shown], known)
    return {name for name in loop.kept.shown if type(one := there.get(name, [])) in _CONTAINERS or _is_leaf(one)}


def same_in(before: Rows, now: Rows) -> set[str]:
    """Return the names of rows that are now as they were before."""
    return {text for text, data in now.items() if before.get(text) == data}


def used_in(loop: Loop, values: Values, rows: Rows) -> list[str]:
    """Return the names of rows and of counters that the loop moves and uses."""
    computes = {*map(name_of, loop.computes)}
    moved = {name for one in values for name in one if name in computes and loop.moves(name)}
    return sorted(moved | rows.keys() - loop.kept.shown)


# ---- tensors ------------------------------------------------------------------------------------------------------


def replaced_in(before: Leaves, now: Leaves) -> set[Which]:
    """Return where there is another tensor than before."""
    found = set[Which]()
    for name in before.keys() & now.keys():
        then, there = _ids(before[name]), _ids(now[name])
        if len(then) != len(there):
            found.add((name, ALL))
        found |= {(name, at) for at, (one, other) in enumerate(zip(then, there, strict=False)) if one != other}
    return found


def _ids(leaves: Iterable[weakref.ref[Any]]) -> list[int]:
    return [id(one()) for one in leaves]


def as_they_were(leaves: Iterable[weakref.ref[Any]]) -> Take:
    """Take the tensors that were there at a look, in order, with what they held then. One that is gone is made anew."""
    left = iter([*leaves])

    def take(_: Any, wanted: Any) -> Any:
        before = next(left, lambda: None)()
        return before if before is not None and _filled(before, wanted) else wanted

    return take


def in_place(but: Set[int] = frozenset()) -> Take:
    """Take the tensors that are there, in order, `but` new ones in these places."""
    at = count()

    def take(there: Any, wanted: Any) -> Any:
        return there if not but & {ALL, next(at)} and _filled(there, wanted) else wanted

    return take


def anew(_: Any, wanted: Any) -> Any:
    """Take a new tensor."""
    return wanted


def _apart(leaves: dict[str, list[Any]], *places: Set[int]) -> dict[str, list[Any]]:
    """Return those of which all can be given, which nothing else shares, and which are not too large together.
    `places`: the addresses of what may share them."""
    outer = {name: several for name, several in leaves.items() if not _bases(name) & leaves.keys()}
    shared = {place for place, count in Counter(map(place_of, chain(*outer.values()))).items() if count > 1}
    found, left = dict[str, list[Any]](), MOST_OF_TENSORS
    for name, several in outer.items():
        own = {*map(place_of, several)}
        fits = all(map(is_kept, several)) and all(one.isdisjoint(own) for one in (shared, *places))
        if fits and (size := sum(one.nbytes for one in several)) <= left:
            found[name] = several
            left -= size
    return found


def _bases(name: str) -> set[str]:
    """Return the names of what this is inside of."""
    return {name[: one.start()] for one in re.finditer(r"[.\[]", name)}


def _leaves_of(value: Any) -> Iterator[Any]:
    """Return the tensors and arrays in a row, in order."""
    if _is_leaf(value):
        yield value
    elif type(value) in (list, tuple, deque, dict):
        items = [*(value.values() if type(value) is dict else value)]
        for item in () if _NUMBERS.issuperset(map(type, items)) else items:
            yield from _leaves_of(item)


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or type(value) is getattr(sys.modules.get("numpy"), "ndarray", None)


def _given(there: Any, wanted: Any, take: Take) -> Any:
    """Return what is wanted, with the tensors that are to be taken. What is inside of a container stays the same object
    where it can, since other code may have it, too."""
    if _is_leaf(wanted):
        return take(there, wanted)
    kind = type(wanted)
    if issubclass(kind, dict):
        inside = {key: _put_in(_in(there, key), item, take) for key, item in wanted.items()}
        return inside if kind is dict else kind(inside)
    if kind in (list, tuple, deque):
        items = [_put_in(_in(there, at), item, take) for at, item in enumerate(wanted)]
        return deque(items, wanted.maxlen) if kind is deque else kind(items)
    return wanted


def _put_in(there: Any, wanted: Any, take: Take) -> Any:
    given = _given(there, wanted, take)
    return there if given is not there and filled(there, given) else given


def _in(there: Any, key: Any) -> Any:
    """Return the item that is there. None: there is none."""
    if isinstance(there, dict):
        return dict.get(there, key)
    return there[key] if type(there) in (list, tuple, deque) and key < len(there) else None


def _filled(there: Any, wanted: Any) -> bool:
    """Give this tensor or array the wanted contents, if it fits. Return whether it does."""
    if type(there) is not type(wanted) or not is_kept(there):
        return False
    if there.shape != wanted.shape or there.dtype != wanted.dtype:
        return False
    if isinstance(there, torch.Tensor):
        if bytes_of(there) == bytes_of(wanted):
            return True  # and no write is counted
        if has_graph(there):
            return False
        there.copy_(wanted)
    else:
        there[...] = wanted
    return True
