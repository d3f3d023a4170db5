"""Finds what a module hands from one forward to the next in plain attributes: `self.hidden = hidden.detach()`.

A repair puts back parameters, buffers and plain values of modules. A tensor in any other attribute is mostly a result:
the attention of the last batch, a mask. But if the source of `forward` reads the attribute before it sets it anew, a
later step computes with what an earlier one has left there. The loop then hands it on (flow.py, held.py).

It does NOT see what only other methods hand on, unless `forward` calls them, and it does not follow inner modules: each
module has a forward of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import partial
from types import CodeType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from taskd.state.flow import Flow
from taskd.state.fully_sharded import own_class
from taskd.state.places import NOTHING, Place, space_of
from taskd.state.reach import Reach
from taskd.state.sources import Node, node_of, unwrapped


class Carried(NamedTuple):
    """Attributes of a module."""

    handed_on: frozenset[str] = frozenset()
    """A forward may find them as an earlier one has left them, and computes with them."""
    read: frozenset[str] = frozenset()
    """A forward computes with what it finds there. Others may set them."""


_of_kinds: WeakKeyDictionary[type, dict[tuple[CodeType, ...], Carried]] = WeakKeyDictionary()
"""What was found, by the class and the functions that one of its modules keeps."""


def carried_by(module: torch.nn.Module) -> Carried:
    """Return what forwards of this module hand on and read."""
    kind: type[torch.nn.Module] = own_class(module)
    if kind.get_extra_state is not torch.nn.Module.get_extra_state:
        return Carried()  # it puts back what it keeps by itself
    found = _of_kinds.setdefault(kind, {})
    functions = tuple(one.__code__ for one in map(unwrapped, space_of(module).values()) if one is not None)
    if functions not in found:
        found[functions] = _found_in(kind, module)
    return found[functions]


def _found_in(kind: type, module: torch.nn.Module) -> Carried:
    forward = unwrapped(getattr(kind, "forward", None))
    node = None if forward is None else node_of(forward.__code__, forward.__globals__)
    if forward is None or not isinstance(node, Node) or not forward.__code__.co_argcount:
        return Carried()
    own, space = forward.__code__.co_varnames[0], forward.__globals__
    flow = Flow(Reach(forward.__code__, space, partial(_at, space, own, module)), hopeful=True)
    try:
        flow.whole(node)
    except RecursionError:  # an expression of many hundred parts
        return Carried()
    return Carried(_attributes(flow.used, own), _attributes(flow.track.outer & flow.track.leads(), own))


def _attributes(places: Iterable[Place], own: str) -> frozenset[str]:
    paths = [place.path for place in places if place.root == own and place.path]
    return frozenset(str(path[0][1]) for path in paths if path[0][0])


def _at(space: dict[str, Any], own: str, module: torch.nn.Module, place: Place) -> Any:
    """Return what is at this place when a forward of the module begins."""
    if place.module:
        return place.found(vars(sys.modules[place.module]))
    return place.found(module if place.root == own else space.get(place.root, NOTHING))
