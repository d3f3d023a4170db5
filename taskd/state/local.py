"""The state that belongs to this rank alone, as a step finds it. It is captured, put back, and written to the record.

It consists of random generators, buffers of modules and their modes (modules.py), gradients that are carried from step
to step, small counters of schedulers and scalers, and objects that the user registered as local. A survivor puts its
own copy back from memory. A newcomer starts from what the dead rank wrote into its record (record.py). Parameters and
optimizers are not here: every replica has them (replica.py), and a step that was given up has not touched them.
"""

from __future__ import annotations

import copy
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from taskd.errors import PeerError
from taskd.state import fully_sharded, rng, shards, tree
from taskd.state.attributes import Own
from taskd.state.averages import Averages
from taskd.state.fully_sharded import Unreduced
from taskd.state.inside import inside_of
from taskd.state.losses import Losses
from taskd.state.modules import Modules, Noted
from taskd.state.places import Spot
from taskd.state.replica import Replica
from taskd.state.variables import Variables

_HEAD = struct.Struct("<qII")
"""The origin and the loop of the rank that writes, and the length of its losses, which follow."""


@dataclass(slots=True, frozen=True)
class Buffers:
    """This rank's own tensors of the models, and of their averages (averages.py)."""

    models: dict[str, torch.Tensor]
    averages: dict[str, list[torch.Tensor]]


class Left(NamedTuple):
    """Marks of a moment, to see whether something has moved since then."""

    loop: int
    generators: bytes
    versions: int
    """The sum of the versions of all buffers."""
    objects: int
    """A digest of the objects that are registered as local."""


@dataclass(slots=True)
class Captured:
    """The state at one moment. A gradient is None: there was none; False: there was one without meaning (zero it)."""

    generators: bytes
    buffers: Buffers
    local: dict[str, Any]
    counters: dict[str, Any]
    settings: list[dict[str, Any]]
    """The settings of each optimizer's groups, which schedulers change."""
    own: dict[str, Own]
    """The attributes of each optimizer."""
    gradients: list[torch.Tensor | bool | None]
    unreduced: Unreduced
    modules: Noted


@dataclass(slots=True)
class LocalState:
    """Captures and restores the registered modules and objects of this rank."""

    replica: Replica
    objects: dict[str, Any] = field(default_factory=dict)
    origin: int = -1
    """A number for what this rank's processes held before their first step (manifest.contents); -1: not known yet."""
    loop: int = 0
    """The number of the loop in which this rank is, from 1."""
    modules: Modules = field(default_factory=Modules)
    variables: Variables = field(default_factory=Variables)
    losses: Losses = field(default_factory=Losses)

    def __post_init__(self) -> None:
        self.variables.known = self.known
        self.variables.others.looks_inside = lambda: inside_of(self.replica.models, self.replica.optimizers)

    def known(self) -> set[int]:
        """Return the ids of the objects whose contents are put back."""
        others = (*self.objects.values(), *self.replica.others.values(), *self.replica.optimizers.values())
        return {id(item) for item in (*others, *self._optimizer_groups())}

    def spots(self) -> set[int | str | Spot]:
        """Return where something is put back: attributes of modules, and the ids of plain containers."""
        containers = [item for item in self.objects.values() if issubclass(type(item), (dict, list))]
        return {*self.modules.spots(), *map(id, (*containers, *self._optimizer_groups()))}

    def capture(self, carried: bool) -> Captured:
        """Capture this moment. `carried`: the gradients of earlier steps still count, so they are kept as well."""
        gradients: list[torch.Tensor | bool | None] = []
        for parameter in self.parameters():
            gradient = parameter.grad
            gradients.append(None if gradient is None else gradient.detach().clone() if carried else False)
        return Captured(
            rng.capture(),
            self.buffers(),
            {name: copy.deepcopy(_state_of(item)) for name, item in self.objects.items()},
            {name: copy.deepcopy(item.state_dict()) for name, item in self.replica.others.items()},
            [
                {key: _kept(value) for key, value in group.items() if key != "params"}
                for group in self._optimizer_groups()
            ],
            self.replica.attributes.note(),
            gradients,
            self.replica.fully_sharded.note(carried),
            self.modules.note(),
        )

    def restore(self, moment: Captured) -> None:
        """Put back an earlier moment of this rank, because the step after it was given up."""
        rng.restore(moment.generators)
        self.modules.put_back(moment.modules)
        self._fill(moment.buffers)
        for name, item in self.objects.items():
            _load(item, copy.deepcopy(moment.local[name]))
        for name, item in self.replica.others.items():
            item.load_state_dict(copy.deepcopy(moment.counters[name]))
        for group, settings in zip(self._optimizer_groups(), moment.settings, strict=False):
            for key, value in settings.items():
                if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
                    group[key].copy_(value)  # a scheduler or a compiled step may know its address
                else:
                    group[key] = value
        self.replica.attributes.put_back(moment.own)
        for parameter, gradient in zip(self.parameters(), moment.gradients, strict=True):
            if gradient is None or parameter.grad is None:
                parameter.grad = None if gradient is None or gradient is False else torch.as_tensor(gradient).clone()
            elif gradient is False:
                parameter.grad.detach().zero_()
            else:
                parameter.grad.detach().copy_(torch.as_tensor(gradient))
        self.replica.fully_sharded.put_back(moment.unreduced)

    def buffers(self) -> Buffers:
        """Return a copy of what the modules' buffers hold now."""
        found = {name: buffer.detach().clone() for name, buffer in self._buffers()}
        return Buffers(found, Averages(self.replica).note())

    def put_back(self, buffers: Buffers) -> None:
        """Another rank's model has arrived: set its buffers to what they held here. Raises PeerError."""
        self._fill(buffers)
        Averages(self.replica).take_up(buffers.averages)

    def _fill(self, buffers: Buffers) -> None:
        for name, buffer in self._buffers():
            buffer.detach().copy_(buffers.models[name])

    def drawn_and_written(self) -> Left:
        """Return marks that show later whether generators, buffers or local objects have moved."""
        versions = sum(0 if one.is_inference() else one._version for _, one in self._buffers())
        own = {name: _state_of(item) for name, item in self.objects.items()}
        name = "what is registered as local"
        objects = zlib.crc32(b"".join(tree.pack(shards.plain(own, name), name))) if own else 0
        return Left(self.loop, rng.capture(), versions, objects)

    def accumulates(self) -> bool:
        """Whether there are any gradients, reduced or not."""
        found = [one.grad for one in self.parameters()] + self.replica.fully_sharded.note(True).gradients
        return any(gradient is not None for gradient in found)

    def carried_gradients(self) -> dict[str, torch.Tensor]:
        """Return all existing gradients, by the parameter's number."""
        found = {str(at): one.grad for at, one in enumerate(self.parameters())}
        return {at: gradient.detach() for at, gradient in found.items() if gradient is not None}

    def put_gradients(self, gradients: dict[str, torch.Tensor]) -> None:
        """Set the parameters' gradients to these."""
        for at, parameter in enumerate(self.parameters()):
            gradient = gradients.get(str(at))
            parameter.grad = None if gradient is None else gradient.to(parameter.device)

    def clear_gradients(self, moment: Captured) -> None:
        """Clear the gradients, because the update after this moment was made, but its step did not get to its end. The
        old gradients are useless, and a script that clears them at a step's end must find them cleared."""
        for parameter, gradient in zip(self.parameters(), moment.gradients, strict=True):
            if gradient is None:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach().zero_()
        self.replica.fully_sharded.clear()

    def pack(
        self, moment: Captured, generators: bytes, opened: bytes, habits: dict[str, Any], late: bool, whole: bool = True
    ) -> list[bytes]:
        """Return the moment as bytes for the record. `generators`: as they were before the step's batch was loaded;
        `opened`: how loaders were opened. A newcomer loads and opens again. `habits`: what this rank's steps are made
        of; `late`: steps change attributes of modules after this moment, too; `whole`: all that the previous step has
        left is in it."""
        carried = {str(at): item for at, item in enumerate(moment.gradients) if isinstance(item, torch.Tensor)}
        parts = {
            "generators": generators,
            "opened": opened,
            "buffers": moment.buffers.models,
            "averages": moment.buffers.averages,
            "local": shards.plain(moment.local, "what is registered as local"),
            "gradients": shards.plain(carried),
            "unreduced": shards.plain(fully_sharded.pack(moment.unreduced)),
            "habits": habits,
            "whole": whole,
            "modules": self.modules.pack(moment.modules, late),
            "variables": self.variables.pack(),
        }
        losses = self.losses.pack()
        head = _HEAD.pack(self.origin, self.loop, len(losses))
        return [head, losses, *tree.pack(parts, "this rank's local state")]

    def adopt(self, data: bytes) -> tuple[bytes, dict[str, Any], bool]:
        """Start from what a dead rank wrote. Returns its `opened`, `habits` and `whole`. Raises PeerError if it does
        not fit."""
        parts = tree.unpack(data[_HEAD.size + len(losses_of(data)) :])
        self.origin = origin_of(data)
        try:
            self.modules.adopt(parts["modules"])
            self.put_back(Buffers(parts["buffers"], parts["averages"]))
            local = self.replica.split(parts["local"])
            for name, item in self.objects.items():
                _load(item, local[name])
            self.put_gradients(self.replica.split(parts["gradients"]))
            unreduced = fully_sharded.unpack(self.replica.split(parts["unreduced"]))
            self.replica.fully_sharded.put_back(unreduced)
            self.variables.others.follow_generators()  # a rehearsal may have made some
            rng.restore(parts["generators"])
            self.variables.inherited.adopt(parts["variables"])
            return parts["opened"], parts["habits"], parts["whole"]
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise PeerError(
                f"the local record of this rank does not fit what this process has set up: {error!r}"
            ) from error

    def parameters(self) -> list[torch.nn.Parameter]:
        return [tensor for _, tensor in self.replica.tensors() if isinstance(tensor, torch.nn.Parameter)]

    def _optimizer_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.replica.optimizers.values() for group in optimizer.param_groups]

    def _buffers(self) -> list[tuple[str, torch.Tensor]]:
        models = self.replica.models.items()
        return [(f"{label}.{name}", buffer) for label, model in models for name, buffer in model.named_buffers()]


def origin_of(data: bytes) -> int:
    """Return the `origin` of the rank that packed this."""
    return int(_HEAD.unpack_from(data)[0])


def loop_of(data: bytes) -> int:
    """Return the loop of the rank that packed this, at that time."""
    return int(_HEAD.unpack_from(data)[1])


def losses_of(data: bytes) -> bytes:
    """Return the losses of the rank that packed this."""
    return data[_HEAD.size : _HEAD.size + _HEAD.unpack_from(data)[2]]


def _kept(value: Any) -> Any:
    """Return a copy of an optimizer's setting, so that it cannot be changed in place."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else copy.copy(value)


def _state_of(item: Any) -> Any:
    if hasattr(item, "state_dict"):
        return item.state_dict()
    if hasattr(item, "get_state") and hasattr(item, "set_state"):  # torch.Generator
        return item.get_state()
    return item


def _load(item: Any, state: Any) -> None:
    if hasattr(item, "load_state_dict"):
        item.load_state_dict(state)
    elif hasattr(item, "set_state"):
        item.set_state(state)
    elif isinstance(item, torch.Tensor):
        item.detach().copy_(state)
    elif isinstance(item, dict):
        item.clear()
        item.update(state)
    else:
        item[:] = state
