"""What torch's `fully_shard` (FSDP2) keeps beside the tensors: which parameters are whole now, and gradients.

A module under `fully_shard` has its shards as parameters, except while it computes: then it has whole parameters, made
for the moment. A step that is given up can end there. So taskd asks here for the parameters and always gets the shards.
When the operations of such a step have ended, all is reset as torch means it for a forward or backward that an error
has left (`reset_iter_state`). Every rank of a repair does that, so all go on with shards and gather the whole
parameters again in the same order.

Gradients that are not reduced yet (`set_requires_gradient_sync(False)`) are kept in the whole parameters, not in the
shards. They are this rank's own. They are noted with the other gradients when a step begins, and put back.

It does NOT know which ranks have the same shards (shards.py).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from taskd.state.living import living

_SWITCHES = (
    "reduce_grads",
    "all_reduce_grads",
    "reshard_after_backward",
    "gradient_divide_factor",
    "reduce_scatter_unused_params",
    "force_sum_reduction_for_comms",
    "unshard_async_op",
    "unshard_in_backward",
)
"""What scripts set for the next forward or backward, on each group of parameters."""
_GROUP, _WHOLE, _ADDED = "_partial_reduce_output", "grad", "unsharded_accumulated_grad"
"""The three places of a gradient that is not reduced on all ranks yet."""


@dataclass(slots=True)
class Unreduced:
    """One moment of all models: the switches of their groups, and the gradients that are not reduced yet."""

    last: list[bool] = field(default_factory=list)
    """Whether the next backward is the last one before an update, by module."""
    switches: list[dict[str, Any]] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)


def _class() -> Any:
    """Return torch's class of modules under `fully_shard`; () if it is not imported."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())


def is_known() -> bool:
    """Whether this torch can reset what a step that is given up has left under `fully_shard`."""
    found = _class()
    return found == () or hasattr(found, "reset_iter_state")


def own_class(module: torch.nn.Module) -> type:
    """Return the module's class as the script wrote it. `fully_shard` replaces it by a class derived from it."""
    kind, made = type(module), _class()
    if not made or not issubclass(kind, made) or kind in (made, *_kinds_of_torch()):
        return kind
    return kind.__mro__[getattr(kind, "_orig_cls_mro_index", 2)]


def parameters_of(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Return the parameters of any module. Those that are whole for the moment come as their shards."""
    shards = _shards_of_whole(_groups(_states(module)))
    return [shards.get(id(parameter), parameter) for parameter in module.parameters()]


class FullySharded:
    """The modules under `fully_shard` among the registered models."""

    def __init__(self, models: Mapping[str, torch.nn.Module]) -> None:
        self._models = models
        self._states: list[Any] = []
        self._groups: list[Any] = []

    def look(self) -> None:
        """A loop begins: find them."""
        self._states = [state for model in self._models.values() for state in _states(model)]
        self._groups = _groups(self._states)

    @property
    def objects(self) -> tuple[Any, ...]:
        """What `fully_shard` keeps for them."""
        return (*self._states, *self._groups)

    def parameters(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Return the parameters of a model by name. Those that are whole for the moment come as their shards."""
        shards = _shards_of_whole(self._groups)
        for name, parameter in model.named_parameters():
            yield name, shards.get(id(parameter), parameter)

    def reduces(self) -> bool:
        """Whether the next backward reduces all gradients over all their ranks."""
        return all(group.reduce_grads and group.all_reduce_grads for group in self._groups)

    def managed(self) -> set[int]:
        """Return the ids of the parameters whose gradients `fully_shard` reduces."""
        return {id(one.sharded_param) for group in self._groups for one in group.fsdp_params}

    def reset(self) -> None:
        """Reset what a step that is given up has left. No operation of it may be under way. Gradients stay.

        A teacher that is not registered is reset, too: it was gathered with the others, or by a newcomer alone."""
        if not is_known():
            return
        # The outermost module may be around the registered ones. It has a list of all, and is the first in it.
        states = [module._get_fsdp_state() for module in _everywhere()]
        all_of_them = [state._state_ctx.all_states for state in states if state._state_ctx.all_states]
        roots = {id(states[0]): states for states in all_of_them}
        groups = [group for states in roots.values() for group in _groups(states)]
        kept = [getattr(group, _GROUP) for group in groups]
        for group in groups:
            if group._all_gather_result is not None:  # its operation has ended, and would raise if it were waited for
                group._all_gather_result = group._all_gather_result._replace(all_gather_work=None)
        for states in roots.values():
            states[0]._reset_iter_state()
        for group, partial in zip(groups, kept, strict=True):
            setattr(group, _GROUP, partial)

    def note(self, carried: bool) -> Unreduced:
        """Note this moment. `carried`: the gradients of earlier steps still count, so they are copied."""
        found = Unreduced([state._state_ctx.is_last_backward for state in self._states])
        for group in self._groups:
            found.switches.append({name: getattr(group, name) for name in _SWITCHES if hasattr(group, name)})
        for owner, place in self._places():
            gradient = getattr(owner, place, None) if carried else None
            found.gradients.append(None if gradient is None else gradient.detach().clone())
        return found

    def put_back(self, noted: Unreduced) -> None:
        """Set all back to what was noted, here or by the process that this one replaces. Raises ValueError if it does
        not fit."""
        for state, last in zip(self._states, noted.last, strict=True):
            state._state_ctx.is_last_backward = last
        for group, switches in zip(self._groups, noted.switches, strict=True):
            for name, value in switches.items():
                setattr(group, name, value)
        for (owner, place), gradient in zip(self._places(), noted.gradients, strict=True):
            if owner is not None:
                setattr(owner, place, None if gradient is None else gradient.to(owner.device, copy=True))
            elif gradient is not None:
                raise ValueError("a gradient that is not reduced yet belongs to a parameter that was never whole here")

    def clear(self) -> None:
        """Forget the gradients that are not reduced yet."""
        for owner, place in self._places():
            if owner is not None:
                setattr(owner, place, None)

    def _places(self) -> list[tuple[Any, str]]:
        """Return where gradients are that are not reduced yet: objects, and the names of their attributes."""
        found: list[tuple[Any, str]] = []
        for group in self._groups:
            found.append((group, _GROUP))
            for one in group.fsdp_params:
                found += [(getattr(one, "_unsharded_param", None), _WHOLE), (one, _ADDED)]
        return found


def pack(noted: Unreduced) -> dict[str, Any]:
    """Return what was noted as plain values and tensors, for the record."""
    kept = {str(at): one for at, one in enumerate(noted.gradients) if one is not None}
    return {"switches": noted.switches, "last": noted.last, "places": len(noted.gradients), "gradients": kept}


def unpack(packed: dict[str, Any]) -> Unreduced:
    """Read what `pack` gave. Raises KeyError if it is something else."""
    gradients = [packed["gradients"].get(str(at)) for at in range(packed["places"])]
    return Unreduced(packed["last"], packed["switches"], gradients)


def _shards_of_whole(groups: list[Any]) -> dict[int, Any]:
    """Return the shards of parameters that are whole for the moment, by the id of the whole parameter."""
    return {
        id(whole): one.sharded_param
        for group in groups
        if not group.is_sharded
        for one in group.fsdp_params
        for whole in (getattr(one, "_unsharded_param", None), getattr(one, "_sharded_post_forward_param", None))
        if whole is not None
    }


def _kinds_of_torch() -> list[type]:
    """Return torch's own classes below its class of modules under `fully_shard`."""
    return [kind for kind in _class().__subclasses__() if "_orig_cls_mro_index" in vars(kind)]


def _everywhere() -> list[Any]:
    """Return all modules of this process that are under `fully_shard`. The search is skipped if there can be none."""
    made = _class()
    return living(made) if made and made.__subclasses__() else []


def _states(model: torch.nn.Module) -> list[Any]:
    """Return what `fully_shard` keeps for the modules of a model, each once, in their order."""
    made = _class()
    if not made:
        return []
    found = {id(state): state for state in (one._get_fsdp_state() for one in model.modules() if isinstance(one, made))}
    return [*found.values()]


def _groups(states: list[Any]) -> list[Any]:
    return [group for state in states for group in state._fsdp_param_groups]
