"""The part of a process' state that belongs to this rank alone, as a step finds it: taken, put back, written down.

Random generators, buffers of modules and their modes (modules.py), gradients that are carried from step to step, small
counters of schedulers and scalers, and whatever the user registered as local. A survivor puts its own copy back from
memory; a newcomer starts from what the dead rank wrote into its record (record.py). Parameters and optimizers are not
here: every replica has them (replica.py), and a step that was given up has not touched them.
"""

from __future__ import annotations

import copy
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from taskd.errors import PeerError
from taskd.state import rng, tree
from taskd.state.attributes import Own
from taskd.state.averages import Averages
from taskd.state.modules import Modules, Noted
from taskd.state.replica import Replica
from taskd.state.variables import Variables

_HEAD = struct.Struct("<qI")
"""The origin of whoever writes, and its loop."""


@dataclass(slots=True, frozen=True)
class Buffers:
    """What is this rank's own of the models, and of their averages (averages.py)."""

    models: dict[str, torch.Tensor]
    averages: dict[str, list[torch.Tensor]]


class Left(NamedTuple):
    """What a moment has left."""

    loop: int
    generators: bytes
    versions: int
    """Of all buffers."""
    objects: int
    """A digest of what is registered as this rank's own."""


@dataclass(slots=True)
class Captured:
    """One moment. `gradients` None for a parameter: it had none; False: it had one that means nothing (zero it)."""

    generators: bytes
    buffers: Buffers
    local: dict[str, Any]
    counters: dict[str, Any]
    settings: list[dict[str, Any]]
    """Of each optimizer's groups: what schedulers set."""
    own: dict[str, Own]
    """Of each optimizer: its own attributes."""
    gradients: list[torch.Tensor | bool | None]
    modules: Noted


@dataclass(slots=True)
class LocalState:
    """What to capture: the modules and objects that were registered."""

    replica: Replica
    objects: dict[str, Any] = field(default_factory=dict)
    origin: int = -1
    """What this rank and its former lives held before their first step (manifest.contents); -1: not known yet."""
    loop: int = 0
    """Which of its loops this rank is in, counted from 1."""
    modules: Modules = field(default_factory=Modules)
    variables: Variables = field(default_factory=Variables)

    def __post_init__(self) -> None:
        self.variables.known = self.known

    def known(self) -> set[int]:
        """The objects whose contents are put back, by id."""
        others = (*self.objects.values(), *self.replica.others.values(), *self.replica.optimizers.values())
        return {id(item) for item in (*others, *self._optimizer_groups())}

    def capture(self, carried: bool) -> Captured:
        """This moment. `carried`: the gradients of earlier steps count on, so they are kept as well."""
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
            self.modules.note(),
        )

    def restore(self, moment: Captured) -> None:
        """Put this rank's own earlier moment back: the step that followed it was given up."""
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
                    group[key].copy_(value)  # whose place a scheduler or a compiled step may know
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

    def buffers(self) -> Buffers:
        """What the modules' buffers hold now."""
        found = {name: buffer.detach().clone() for name, buffer in self._buffers()}
        return Buffers(found, Averages(self.replica).note())

    def put_back(self, buffers: Buffers) -> None:
        """Another rank's model has come in: give its buffers what they held here. Raises PeerError."""
        self._fill(buffers)
        Averages(self.replica).take_up(buffers.averages)

    def _fill(self, buffers: Buffers) -> None:
        for name, buffer in self._buffers():
            buffer.detach().copy_(buffers.models[name])

    def drawn_and_written(self) -> Left:
        """What tells whether generators, buffers or objects of its own have moved meanwhile."""
        versions = sum(0 if one.is_inference() else one._version for _, one in self._buffers())
        own = {name: _state_of(item) for name, item in self.objects.items()}
        objects = zlib.crc32(b"".join(tree.pack(own, "what is registered as local"))) if own else 0
        return Left(self.loop, rng.capture(), versions, objects)

    def carried_gradients(self) -> dict[str, torch.Tensor]:
        """All gradients that there are, by the parameter's number."""
        found = {str(at): one.grad for at, one in enumerate(self.parameters())}
        return {at: gradient.detach() for at, gradient in found.items() if gradient is not None}

    def put_gradients(self, gradients: dict[str, torch.Tensor]) -> None:
        """Go on with these."""
        for at, parameter in enumerate(self.parameters()):
            gradient = gradients.get(str(at))
            parameter.grad = None if gradient is None else gradient.to(parameter.device)

    def clear_gradients(self, moment: Captured) -> None:
        """The update that followed this moment was made, but its step was not seen to its end: what its gradients
        were is of no use, and a script that clears them at a step's end must find them cleared."""
        for parameter, gradient in zip(self.parameters(), moment.gradients, strict=True):
            if gradient is None:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.detach().zero_()

    def pack(
        self, moment: Captured, generators: bytes, opened: bytes, habits: dict[str, Any], late: bool, whole: bool = True
    ) -> list[bytes]:
        """The moment as it goes into the record, with the generators as they stood before the step's batch was loaded,
        and how loaders were opened (`opened`): a newcomer does both again. `habits`: what this rank's
        steps are made of; `late`: they go on to change attributes of modules after this moment; `whole`: all that the
        step before has left is in it."""
        carried = {str(at): item for at, item in enumerate(moment.gradients) if isinstance(item, torch.Tensor)}
        parts = {
            "generators": generators,
            "opened": opened,
            "buffers": moment.buffers.models,
            "averages": moment.buffers.averages,
            "local": moment.local,
            "gradients": carried,
            "habits": habits,
            "whole": whole,
            "modules": self.modules.pack(moment.modules, late),
            "variables": self.variables.pack(),
        }
        return [_HEAD.pack(self.origin, self.loop), *tree.pack(parts, "this rank's local state")]

    def adopt(self, data: bytes) -> tuple[bytes, dict[str, Any], bool]:
        """Start from what a dead rank wrote down; returns its `opened`, `habits` and `whole`. Raises PeerError if it
        does not fit."""
        parts = tree.unpack(data[_HEAD.size :])
        self.origin = origin_of(data)
        try:
            self.modules.adopt(parts["modules"])
            self.put_back(Buffers(parts["buffers"], parts["averages"]))
            for name, item in self.objects.items():
                _load(item, parts["local"][name])
            self.put_gradients(parts["gradients"])
            rng.restore(parts["generators"])
            self.variables.adopt(parts["variables"])
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
    """The `origin` of whoever packed this."""
    return int(_HEAD.unpack_from(data)[0])


def loop_of(data: bytes) -> int:
    """The loop in which whoever packed this was."""
    return int(_HEAD.unpack_from(data)[1])


def _kept(value: Any) -> Any:
    """A setting of an optimizer, such that nobody changes it in place."""
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
