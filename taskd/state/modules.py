"""The state of modules beside their tensors: modes, plain attributes, which parameters are trained, and extra state.

A step that is given up may have left a module in another mode, a Dropout with another p, or a layer frozen. So this
state is noted when a step begins, in one walk over the modules that were found when the loop began. Nothing is copied.
Only the difference from the script's set-up goes into this rank's record, because a newcomer runs the same set-up.

What it does NOT note: attributes that are containers or objects, and attributes of torch's own wrapper modules
(DistributedDataParallel tracks its own state).
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from typing import Any

import torch

from taskd.errors import PeerError, UsageError
from taskd.state import fully_sharded, tree
from taskd.state.places import Spot

LATE = "attributes of modules change after a step's backward has begun: those of a rank that died are lost"
_PLAIN = (bool, int, float, str, type(None))
_KINDS = frozenset(_PLAIN)
_WRAPPERS = ("torch.nn.parallel", "torch.distributed")
_LEARNS = attrgetter("requires_grad")
_BYTES = "taskd bytes of an io.BytesIO"


@dataclass(slots=True, frozen=True)
class Noted:
    """One moment: the plain attributes of each module, and whether each parameter is trained."""

    names: list[tuple[str, ...]]
    values: list[tuple[Any, ...]]
    known: list[frozenset[str]]
    """All attributes that each module had."""
    learns: list[bool]
    extra: dict[str, Any]
    """The extra state of modules that define get_extra_state."""

    def alike(self, other: Noted) -> bool:
        """Whether modes, attributes and trained parameters are the same."""
        return self.values == other.values and self.learns == other.learns and self.names == other.names

    def without(self, others: Set[tuple[int, str]]) -> Noted:
        """Return the same without these attributes: the number of the module, and the name."""
        there = [
            [(name, value) for name, value in zip(names, values, strict=True) if (at, name) not in others]
            for at, (names, values) in enumerate(zip(self.names, self.values, strict=True))
        ]
        names = [tuple(name for name, _ in one) for one in there]
        return replace(self, names=names, values=[tuple(value for _, value in one) for one in there])

    def without_modes(self) -> Noted:
        """Return the same without `training`."""
        pairs = [zip(names, values, strict=True) for names, values in zip(self.names, self.values, strict=True)]
        return replace(self, values=[tuple(value for name, value in one if name != "training") for one in pairs])


class Modules:
    """The registered modules and all modules inside them, as they were when the first loop began."""

    def __init__(self) -> None:
        self._modules: list[torch.nn.Module] = []
        self._attributes: list[dict[str, Any]] = []
        self._lengths: list[int] = []
        self._names: list[tuple[str, ...]] = []
        self._known: list[frozenset[str]] = []
        self._getters: list[Callable[[Any], tuple[Any, ...]]] = []
        self._parameters: list[torch.nn.Parameter] = []
        self._with_extra: list[tuple[str, torch.nn.Module]] = []
        self._set_up: Noted | None = None

    def look(self, models: dict[str, torch.nn.Module]) -> list[str]:
        """Find the modules and how the script has set them up; only the first call does it. Return a sentence for each
        module whose extra state cannot be kept."""
        if self._set_up is not None:
            return []
        found: dict[int, tuple[str, torch.nn.Module]] = {}
        for label, model in models.items():
            for name, module in model.named_modules():
                found.setdefault(id(module), (f"{label}.{name}".rstrip("."), module))
        self._modules = [module for _, module in found.values()]
        self._attributes = [vars(module) for module in self._modules]
        every = [one for model in models.values() for one in fully_sharded.parameters_of(model)]
        self._parameters = list({id(one): one for one in every}.values())
        usual = torch.nn.Module.get_extra_state
        unfit: list[str] = []
        for name, module in found.values():
            if type(module).get_extra_state is not usual:
                try:
                    tree.flatten(_closed(module.get_extra_state()), f"the extra state of {name}")
                    self._with_extra.append((name, module))
                except UsageError as error:
                    unfit.append(str(error))
        self._set_up = self.note()
        return unfit

    def note(self, extra: bool = True) -> Noted:
        """Note this moment, with the extra state or without."""
        lengths = list(map(len, self._attributes))
        if lengths != self._lengths:
            self._lengths = lengths
            self._name()
        try:
            values = self._values()
        except KeyError:  # as many attributes as before, but other ones
            values = [(NotImplemented,)]
        if not all(map(_are_plain, values)):  # `self.mask = None` may become a tensor
            self._name()
            values = self._values()
        learns = list(map(_LEARNS, self._parameters))
        return Noted(self._names, values, self._known, learns, self._extra() if extra else {})

    def _values(self) -> list[tuple[Any, ...]]:
        return [get(attributes) for get, attributes in zip(self._getters, self._attributes, strict=True)]

    def _name(self) -> None:
        self._names = [_names(module) for module in self._modules]
        self._known = [frozenset(attributes) for attributes in self._attributes]
        self._getters = [_getter(names) for names in self._names]

    def put_back(self, noted: Noted) -> None:
        """Set everything back to what was noted. Plain attributes that are new since then are deleted."""
        self.put_back_attributes(noted)
        for name, module in self._with_extra:
            module.set_extra_state(_opened(noted.extra[name]))

    def put_back_attributes(self, noted: Noted) -> None:
        """Do the same without the extra state."""
        for module, names, known, values in zip(self._modules, noted.names, noted.known, noted.values, strict=True):
            attributes = vars(module)
            for name in [] if _wraps(module) else [name for name in attributes if name not in known]:
                if isinstance(attributes[name], _PLAIN):
                    del attributes[name]
            _set(module, zip(names, values, strict=True))
        self._learn(noted.learns)

    def _learn(self, learns: list[bool]) -> None:
        for parameter, learn in zip(self._parameters, learns, strict=True):
            if parameter.requires_grad is not learn:
                parameter.requires_grad_(learn)

    def moved(self, noted: Noted) -> bool:
        """Whether anything differs from what was noted, except modes: scripts change modes for a while, the rest for
        good."""
        return not self.note(extra=False).without_modes().alike(noted.without_modes())

    def pack(self, noted: Noted, late: bool) -> dict[str, Any]:
        """Return the difference from the set-up, for the record. `late`: steps usually change more of it later."""
        assert self._set_up is not None
        changed, made = list[list[Any]](), list[list[Any]]()
        if not noted.alike(self._set_up):
            for at, (names, values) in enumerate(zip(noted.names, noted.values, strict=True)):
                then = dict(zip(self._set_up.names[at], self._set_up.values[at], strict=True))
                now = dict(zip(names, values, strict=True))
                changed += [[at, name, value] for name, value in now.items() if then.get(name, then) != value]
                made += [[at, name] for name in then if name in noted.known[at] and name not in now]
        learns = noted.learns if noted.learns != self._set_up.learns else []
        return {"changed": changed, "made": made, "learns": learns, "extra": noted.extra, "late": late}

    def adopt(self, packed: dict[str, Any]) -> None:
        """Set everything to what a dead rank has packed. Raises PeerError if it does not fit."""
        assert self._set_up is not None
        if packed["late"]:
            raise PeerError(LATE)
        fits = not packed["learns"] or len(packed["learns"]) == len(self._parameters)
        fits &= packed["extra"].keys() == self._set_up.extra.keys()
        if not fits or any(at >= len(self._modules) for at, _, _ in packed["changed"]):
            raise PeerError("the record of this rank has other modules than this process has set up")
        made = {(at, name) for at, name in packed["made"]}  # by now they are no plain values, as after a rehearsal
        self.put_back(replace(self._set_up.without(made), extra=packed["extra"]))
        for at, name, value in packed["changed"]:
            _set(self._modules[at], [(name, value)])
        if packed["learns"]:
            self._learn(packed["learns"])

    def spots(self) -> set[Spot]:
        """Return where the attributes are that are put back. A module with extra state puts back what it keeps itself,
        and torch's wrappers track their own."""
        own = {id(module) for _, module in self._with_extra}
        found = set[Spot]()
        for module in self._modules:
            names = vars(module) if id(module) in own or _wraps(module) else _names(module)
            found.update((id(module), name) for name in names)
        return found

    def _extra(self) -> dict[str, Any]:
        return {name: _closed(module.get_extra_state()) for name, module in self._with_extra}


def _wraps(module: torch.nn.Module) -> bool:
    """Whether it is one of torch's wrapper modules, which track their own state."""
    return fully_sharded.own_class(module).__module__.startswith(_WRAPPERS)


def _set(module: torch.nn.Module, values: Iterable[tuple[str, Any]]) -> None:
    attributes = vars(module)
    for name, value in values:
        inside = name in module._parameters or name in module._buffers or name in module._modules
        if not inside and attributes.get(name, attributes) is not value:
            attributes[name] = value


def _names(module: torch.nn.Module) -> tuple[str, ...]:
    if isinstance(module, torch.jit.ScriptModule):
        return ()  # its attributes are not Python objects
    if _wraps(module):
        return ("training",)
    return tuple(name for name, value in vars(module).items() if isinstance(value, _PLAIN))


def _are_plain(values: tuple[Any, ...]) -> bool:
    return _KINDS.issuperset(map(type, values)) or all(isinstance(value, _PLAIN) for value in values)


def _getter(names: Iterable[str]) -> Callable[[Any], tuple[Any, ...]]:
    names = tuple(names)
    if len(names) > 1:
        return itemgetter(*names)
    return lambda attributes: tuple(attributes[name] for name in names)


def _closed(state: Any) -> Any:
    """Return a copy of extra state that cannot change. Transformer Engine gives a tensor, or bytes in an io.BytesIO."""
    if isinstance(state, io.BytesIO):
        return {_BYTES: state.getvalue()}
    return copy.deepcopy(state)


def _opened(state: Any) -> Any:
    if isinstance(state, dict) and _BYTES in state:
        return io.BytesIO(state[_BYTES])
    return copy.deepcopy(state)
