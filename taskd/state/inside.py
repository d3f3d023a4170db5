"""Finds what the script has put into registered modules and optimizers: hooks, and objects that modules keep.

The source of a loop does not name hooks, and yet they may count, and scale what a step computes. Of modules of the
script's own classes, a repair puts back plain attributes (modules.py), but neither lists nor objects. This module only
finds them: leaves.py looks at what they can reach.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from taskd.state.carrying import Attributes, carried_in
from taskd.state.held import place_of
from taskd.state.hooks import OF_ALL_MODULES, OF_MODULES, OF_OPTIMIZERS, OF_PARAMETERS, Owner, is_own
from taskd.state.leaves import HOOK, Thing
from taskd.state.marks import Which, code, which_of
from taskd.state.places import space_of
from taskd.state.plain import is_scalar
from taskd.state.sources import is_the_scripts

_FILLED = (list, dict, set, deque)
_OWN_OF_OPTIMIZERS = ("defaults", "state", "param_groups")


class Shape(NamedTuple):
    """The parts of modules, and what says what these compute."""

    modules: Sequence[torch.nn.Module] = ()
    kinds: Sequence[type] = ()
    parts: Sequence[tuple[Mapping[str, Any], list[int]]] = ()
    """Where each module has its parts, and the ids of these."""
    spaces: Sequence[Mapping[str, Any]] = ()
    forwards: Sequence[Any] = ()
    """The functions that stand for the forwards of some."""

    @property
    def stays(self) -> bool:
        """Whether all is as it was. This takes some 0.2 ms for 1,000 modules."""
        return (
            all([*map(id, there.values())] == ids for there, ids in self.parts)
            and [*map(type, self.modules)] == self.kinds
            and all(space.get("forward") is one for space, one in zip(self.spaces, self.forwards, strict=True))
        )


class Inside(NamedTuple):
    """What is inside of the registered modules and optimizers."""

    hooks: tuple[Thing, ...] = ()
    owners: tuple[Owner, ...] = ()
    """What may have hooks."""
    classes: tuple[Thing, ...] = ()
    """The script's own classes of modules, and with them what their methods use."""
    modules: tuple[tuple[str, Which], ...] = ()
    """Of which classes the modules are."""
    kept: tuple[tuple[str, Any, str], ...] = ()
    """What modules and optimizers keep: its name, the module or optimizer, and the attribute."""
    put_back: frozenset[int] = frozenset()
    """The ids of all modules, and of the tensors that are put back with them and with the optimizers."""
    places: frozenset[int] = frozenset()
    """The addresses of these tensors."""
    of_forwards: Attributes = Attributes()
    """What forwards hand on to later ones, and what else they read."""
    shape: Shape = Shape()

    @property
    def things(self) -> list[Thing]:
        """The hooks, and what the modules keep now. A None may have become a tensor: that is mostly a result."""
        kept = [(name, space_of(owner).get(attribute)) for name, owner, attribute in self.kept]
        kept = [one for one in kept if not issubclass(type(one[1]), torch.Tensor)]
        return [*self.hooks, *self.classes, *self.modules, *kept]


def inside_of(models: Mapping[str, torch.nn.Module], optimizers: Mapping[str, torch.optim.Optimizer]) -> Inside:
    """Return the script's hooks and what its modules keep, each with a name."""
    found = [*_named("all modules", vars(torch.nn.modules.module), OF_ALL_MODULES)]
    owners = list[Owner]([("all modules", torch.nn.modules.module, OF_ALL_MODULES)])
    kept, put_back, places = list[tuple[str, Any, str]](), set[int](), set[int]()
    named = [
        (f"{label}.{name}".rstrip("."), one) for label, model in models.items() for name, one in model.named_modules()
    ]
    classes = dict[str, type]()
    for owner, module in named:
        tensors = (*module.buffers(recurse=False), *module.parameters(recurse=False))
        put_back |= {id(module), *map(id, tensors)}
        places.update(map(place_of, tensors))
        kept += _kept(owner, module)
        if is_the_scripts(type(module)):
            classes[type(module).__qualname__] = type(module)
        found += _named(owner, space_of(module), OF_MODULES)
        owners.append((owner, module, OF_MODULES))
        for name, parameter in module.named_parameters(recurse=False):
            spaces = {key: getattr(parameter, key, None) for key in OF_PARAMETERS}
            found += _named(f"{owner}.{name}", spaces, OF_PARAMETERS)
            owners.append((f"{owner}.{name}", parameter, OF_PARAMETERS))
            kept += ((f"{owner}.{name}.{key}", parameter, key) for key in vars(parameter) if key[0] != "_")
    for label, optimizer in optimizers.items():
        found += _named(label, space_of(optimizer), OF_OPTIMIZERS)
        owners.append((label, optimizer, OF_OPTIMIZERS))
        held = [item for state in optimizer.state.values() for item in _values_of(state)]
        own = [item for item in held if issubclass(type(item), torch.Tensor)]
        put_back |= {*map(id, own)}
        places.update(map(place_of, own))
        kept += (one for one in _kept(label, optimizer) if one[2] not in _OWN_OF_OPTIMIZERS)
        for at, group in enumerate(optimizer.param_groups):
            put = ((key, item) for key, item in group.items() if key != "params" and issubclass(type(item), _FILLED))
            found += ((f"{label}.param_groups[{at}][{key!r}]", item) for key, item in put)
    ids, addresses = frozenset(put_back), frozenset(places)
    modules = tuple((f"the modules of {label}", _all_of(model)) for label, model in models.items())
    return Inside(
        tuple(found),
        tuple(owners),
        tuple(classes.items()),
        modules,
        tuple(kept),
        ids,
        addresses,
        carried_in(named),
        _shape_of([module for _, module in named]),
    )


def _shape_of(modules: Sequence[torch.nn.Module]) -> Shape:
    spaces = [space_of(one) for one in modules]
    there = [space.get("_modules", {}) for space in spaces]
    parts = [(one, [*map(id, one.values())]) for one in there]
    return Shape(modules, [*map(type, modules)], parts, spaces, [space.get("forward") for space in spaces])


def _all_of(model: torch.nn.Module) -> Which:
    """Return which classes all modules have, and which functions stand for the forwards of some."""
    forwards = ((name, type(one), which_of(space_of(one).get("forward"))) for name, one in model.named_modules())
    parts = [f"{name} {kind.__module__}.{kind.__qualname__} {forward}" for name, kind, forward in forwards]
    return code(f"{len(parts)} modules {zlib.crc32('|'.join(parts).encode())}")


def _values_of(state: Any) -> Iterable[Any]:
    return state.values() if issubclass(type(state), Mapping) else ()


def _kept(name: str, owner: torch.nn.Module | torch.optim.Optimizer) -> Iterator[tuple[str, Any, str]]:
    """Return what an object keeps, apart from what is put back with it. If its class is of an installed package, return
    only what a script has put there: what can be filled, and objects of its own classes."""
    is_own = is_the_scripts(type(owner))
    for attribute, item in [*space_of(owner).items()]:
        kind = type(item)
        other = not is_scalar(item) and not issubclass(kind, (torch.nn.Module, torch.Tensor))
        if not is_own:
            other = issubclass(kind, _FILLED) or is_the_scripts(kind)
        if (other or (is_own and item is None)) and not attribute.startswith("_"):  # what is None may be made later
            yield f"{name}.{attribute}", owner, attribute


def _named(owner: str, space: Mapping[str, Any], kinds: tuple[str, ...]) -> Iterator[Thing]:
    for kind in kinds:
        hooks = space.get(kind) or {}
        own = [one for one in hooks.values() if is_own(one)]
        yield from ((f"{HOOK}{at} of {owner}", one) for at, one in enumerate(own, 1))
