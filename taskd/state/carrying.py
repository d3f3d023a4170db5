"""Finds what modules hand from one forward to the next in plain attributes: `self.hidden = hidden.detach()`.

A repair puts back parameters, buffers and plain values of modules. A tensor in any other attribute is mostly a result:
the attention of the last batch, a mask. But if the source of a forward reads the attribute before it sets it anew, a
later step computes with what an earlier one has left there. The loop then hands it on (flow.py, held.py). So it does if
the forward of one module reads what the forward of another one sets. That the module has an extra state changes
nothing: it may hold this, or only a version.

It does NOT see what only methods hand on that no forward calls.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from taskd.state.flow import Flow
from taskd.state.fully_sharded import own_class
from taskd.state.places import ANY, NOTHING, Path, Place, attribute_of, space_of
from taskd.state.reach import Reach
from taskd.state.sources import Node, node_of, unwrapped

Attribute = tuple[str, torch.nn.Module, str]
"""A name, a module, and the attribute of the module that has this name."""
_Spot = tuple[int, str]
"""The id of a module, and the name of an attribute."""


class Carried(NamedTuple):
    """Places that begin at a module. The forward of its class..."""

    handed_on: frozenset[Path] = frozenset()
    """...may find them as an earlier one has left them, and computes with them."""
    read: frozenset[Path] = frozenset()
    """...computes with what it finds there. Others may set them."""
    written: frozenset[Path] = frozenset()
    """...sets them, or changes them in place."""


_of_kinds: WeakKeyDictionary[type, dict[tuple[object, ...], Carried]] = WeakKeyDictionary()
"""What was found, by the class, and by the functions that a module keeps and the classes of all modules in it."""


class Attributes(NamedTuple):
    """What the forwards of several modules do with attributes."""

    handed_on: tuple[Attribute, ...] = ()
    """What they hand on to later ones."""
    perhaps: tuple[Attribute, ...] = ()
    """What one reads and another one sets, which may be before each use."""
    read: tuple[Attribute, ...] = ()
    """What else they read."""


def carried_in(named: Iterable[tuple[str, torch.nn.Module]]) -> Attributes:
    """Return what the forwards of these modules hand on, and what else they read."""
    modules = dict[int, tuple[str, torch.nn.Module]]()
    for name, module in named:
        modules.setdefault(id(module), (name, module))
    found = {at: carried_by(module) for at, (_, module) in modules.items()}
    writers, handed_on, read, perhaps = dict[_Spot, set[int]](), set[_Spot](), set[_Spot](), set[_Spot]()
    for at, one in found.items():
        for spot in _spots(modules[at][1], one.written):
            writers.setdefault(spot, set()).add(at)
    for at, one in found.items():
        module = modules[at][1]
        reads = {*_spots(module, one.read)}
        handed_on |= {*_spots(module, one.handed_on)}
        perhaps |= {spot for spot in reads if writers.get(spot, set()) - {at}}
        read |= reads

    def attributes(spots: set[_Spot]) -> tuple[Attribute, ...]:
        there = sorted((f"{modules[at][0]}.{key}", at, key) for at, key in spots if at in modules)
        return tuple((name, modules[at][1], key) for name, at, key in there)

    return Attributes(attributes(handed_on), attributes(perhaps - handed_on), attributes(read - perhaps - handed_on))


def carried_by(module: torch.nn.Module) -> Carried:
    """Return what the forward of this module hands on, reads and sets."""
    kind: type[torch.nn.Module] = own_class(module)
    found = _of_kinds.setdefault(kind, {})
    functions = (one.__code__ for one in map(unwrapped, space_of(module).values()) if one is not None)
    key = (*functions, *map(type, module.modules()))
    if key not in found:
        found[key] = _found_in(kind, module)
    return found[key]


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

    def paths(places: Iterable[Place]) -> frozenset[Path]:
        every = (one for place in places for one in (place, *flow.track.meant(place)))
        return frozenset(one.path for one in every if one.root == own and one.path)

    return Carried(paths(flow.used), paths(flow.track.outer & flow.track.leads()), paths(flow.track.written))


def _spots(module: torch.nn.Module, paths: Iterable[Path]) -> Iterator[_Spot]:
    """Return the attributes to which these paths lead, each of the innermost module on the way."""
    for path in paths:
        todo = [(module, path)]
        while todo:
            owner, (part, *rest) = todo.pop()
            inner = _inner(owner, part)
            if rest:
                todo += [(one, tuple(rest)) for one in inner]
            if not inner and part[0]:
                yield id(owner), str(part[1])


def _inner(module: torch.nn.Module, part: tuple[bool, Any]) -> list[torch.nn.Module]:
    """Return the modules to which an attribute or an item leads. There are several if the item's key is computed."""
    (is_attribute, key), inner = part, module._modules
    if not is_attribute and key is ANY:
        return [one for one in inner.values() if one is not None]
    if type(key) is int and key < 0:
        key += len(inner)
    one = inner[str(key)] if str(key) in inner else None  # noqa: SIM401 (a ScriptModule has no get)
    return [] if one is None else [one]


def _at(space: dict[str, Any], own: str, module: torch.nn.Module, place: Place) -> Any:
    """Return what is at this place when a forward of the module begins."""
    if place.module:
        return place.found(vars(sys.modules[place.module]))
    if place.root != own:
        return place.found(space.get(place.root, NOTHING))
    found, path = module, [*place.path]
    while path and len(inner := _inner(found, path[0])) == 1 and path[0][1] is not ANY:
        found, path = inner[0], path[1:]
    if not path or not path[0][0]:
        return NOTHING if path else found
    rest = Place(place.text, place.root, tuple(path[1:]))
    return rest.found(attribute_of(found, path[0][1]))
