"""Brings what only this rank has of a model to a number of updates: its parameters, and the state of its optimizer.

Parameters and the state of an optimizer change only in the update, and the update is a function of what the optimizer
is given. So a state, and what was given after it, lead to the next state. The script's own optimizer makes that update,
on whole tensors and on the same kind of device, so that the bits are the same.

Failure modes: an optimizer that needs more than gradients (a closure, or a hook of the script that changes gradients
later), that keeps something outside of its state, or weights that move behind the update. `tries` finds that out: it
makes an update once more, compares, and puts all back. It writes into the tensors that are there and replaces none, as
the script may hold them, too. It does NOT know when something is to be kept, or who communicates (worker/keeping.py).
"""

from __future__ import annotations

import hashlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from taskd.errors import PeerError
from taskd.state import exact, rng, shards, tree
from taskd.state.attributes import PLAIN
from taskd.state.replica import Replica

_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def state_of(replica: Replica) -> dict[str, Any]:
    """Return what only this rank has, in plain form, and what all ranks have alike. It is not copied."""
    parameters = [shards.shard_of(one).detach() for _, one in _parameters(replica)]
    optimizers = {name: item.state_dict() for name, item in replica.optimizers.items()}
    found: dict[str, Any] = shards.plain({"parameters": parameters, "optimizers": optimizers})
    return found | {"common": common(replica)}


def given_to(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what an optimizer is given for its next update, in plain form. It is not copied."""
    found: dict[str, Any] = shards.plain(
        {
            "gradients": [one.grad for one in _trained(optimizer)],
            "groups": [_settings(group) for group in optimizer.param_groups],
        }
    )
    return found


def load(replica: Replica, state: dict[str, Any]) -> None:
    """Load what `state_of` has returned. Raises PeerError if it does not fit."""
    found = [*_parameters(replica)]
    if len(found) != len(state["parameters"]):
        raise PeerError(f"{len(state['parameters'])} parameters were kept of this rank, and it has {len(found)} now")
    with torch.no_grad():
        for (name, parameter), kept in zip(found, state["parameters"], strict=True):
            shard = shards.shard_of(parameter)
            if (shard.shape, shard.dtype) != (kept.shape, kept.dtype):
                raise PeerError(f"what was kept of {name} has another shape or dtype than it has now")
            shard.copy_(kept)
    optimizers = replica.split(state["optimizers"])
    for name, optimizer in replica.optimizers.items():
        exact.load(name, optimizer, optimizers[name])
    take_common(replica, state["common"])


def update(replica: Replica, optimizer: torch.optim.Optimizer, given: dict[str, Any]) -> None:
    """Make the update for which the optimizer was given this. Its gradients are gone afterwards."""
    for group, settings in zip(optimizer.param_groups, given["groups"], strict=True):
        _set(group, settings)
    gradients = replica.split(given["gradients"])
    for parameter, gradient in zip(_trained(optimizer), gradients, strict=True):
        parameter.grad = None if gradient is None else gradient.to(parameter.device)
    _plain_step(optimizer)(optimizer)
    for parameter in _trained(optimizer):
        parameter.grad = None


def tries(replica: Replica, before: dict[str, Any], given: dict[str, Any]) -> str:
    """Make the last update once more, from what was kept, and compare. Return what differs; empty: nothing. All is put
    back in either case: tensors, settings, plain attributes, gradients and random generators."""
    (optimizer,) = replica.optimizers.values()
    held = [*_held(replica, optimizer)]
    settings = [one for group in optimizer.param_groups for one in group.values() if isinstance(one, torch.Tensor)]
    now = [tensor.detach().cpu().clone() for tensor in (*(one for _, one in held), *settings)]
    values = [(state, {**state}) for state in optimizer.state.values() if isinstance(state, dict)]
    groups = [(group, {**group}) for group in optimizer.param_groups]
    gradients = [(one, one.grad) for one in _trained(optimizer)]
    attributes, generators = replica.attributes.note(), rng.capture()
    try:
        _go_back(replica, optimizer, before)
        update(replica, optimizer, given)
        pairs = zip(_held(replica, optimizer), now[: len(held)], strict=True)
        return next((name for (name, one), other in pairs if not _same(one, other)), "")
    finally:
        for space, kept in (*values, *groups):
            space.clear()
            space.update(kept)
        with torch.no_grad():
            for tensor, kept in zip((*(one for _, one in held), *settings), now, strict=True):
                tensor.copy_(kept)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        replica.attributes.put_back(attributes)
        rng.restore(generators)


def has_same_entries(optimizer: torch.optim.Optimizer, before: dict[str, Any]) -> bool:
    """Whether the optimizer's state has the entries that it had before its last update. The first update makes them."""
    (kept,) = before["optimizers"].values()
    return all(
        optimizer.state.get(parameter, {}).keys() == kept["state"].get(number, {}).keys()
        for number, parameter in enumerate(_trained(optimizer))
    )


def outside_of_its_state(optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the names of an optimizer's attributes that may change with an update and are not in its state."""
    of_torch = vars(torch.optim.SGD([torch.zeros(1)]))
    own = {name: value for name, value in vars(optimizer).items() if name not in of_torch}
    return sorted(name for name, value in own.items() if not isinstance(value, (*PLAIN, *_FUNCTIONS)))


def _go_back(replica: Replica, optimizer: torch.optim.Optimizer, before: dict[str, Any]) -> None:
    """Write an earlier state, which has the same entries, into the tensors that are there."""
    (kept,) = before["optimizers"].values()
    with torch.no_grad():
        for (_, parameter), value in zip(_parameters(replica), before["parameters"], strict=True):
            shards.shard_of(parameter).copy_(value)
        for number, parameter in enumerate(_trained(optimizer)):
            state = optimizer.state.get(parameter, {})
            for name, value in replica.split(kept["state"].get(number, {})).items():
                if isinstance(value, torch.Tensor):
                    shards.shard_of(state[name]).copy_(shards.shard_of(value))
                else:
                    state[name] = value


def _held(replica: Replica, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors that an update changes, each with its name: parameters and the optimizer's state."""
    for name, parameter in _parameters(replica):
        yield name, shards.shard_of(parameter)
    for number, parameter in enumerate(_trained(optimizer)):
        for name, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, torch.Tensor):
                yield f"{name} of parameter {number} in the optimizer", shards.shard_of(value)


def _plain_step(optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
    """Return the step of an optimizer's class without the hooks that torch puts around it."""
    step: Any = type(optimizer).step
    while getattr(step, "hooked", False):
        step = step.__wrapped__
    return step  # type: ignore[no-any-return]


def _parameters(replica: Replica) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the parameters of the models, and the other tensors that optimizers train."""
    buffers = {id(buffer) for model in replica.models.values() for buffer in model.buffers()}
    return ((name, tensor) for name, tensor in replica.tensors() if id(tensor) not in buffers)


def _trained(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (one for group in optimizer.param_groups for one in group["params"])


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}


def _set(group: dict[str, Any], settings: dict[str, Any]) -> None:
    """Set the settings of a group. A tensor stays the script's own object."""
    for name, value in settings.items():
        if isinstance(group.get(name), torch.Tensor) and isinstance(value, torch.Tensor):
            group[name].copy_(value)
        else:
            group[name] = value


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have the same bits."""
    return torch.equal(_bits(one), _bits(other))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)


# ---- what all ranks have alike ---------------------------------------------------------------------------------------


def common(replica: Replica) -> dict[str, Any]:
    """Return the small state that all ranks have alike: schedulers and the like, and the settings of optimizers."""
    return {
        "others": {name: item.state_dict() for name, item in replica.others.items()},
        "groups": {
            name: [_settings(group) for group in optimizer.param_groups]
            for name, optimizer in replica.optimizers.items()
        },
        "attributes": replica.attributes.tell(),
    }


def number_of(found: dict[str, Any]) -> int:
    """Return a number that is the same on ranks for which `common` returns the same, but for attributes: these may be a
    rank's own, and `take_common` sees that."""
    pieces = tree.pack({"others": found["others"], "groups": found["groups"]}, "what all ranks have alike")
    return int.from_bytes(hashlib.sha256(b"".join(pieces)).digest()[:8], "little") >> 1


def take_common(replica: Replica, found: dict[str, Any]) -> None:
    """Take what `common` has returned on another rank. Raises PeerError if it does not fit."""
    try:
        for name, item in replica.others.items():
            exact.load(name, item, found["others"][name])
        for name, optimizer in replica.optimizers.items():
            for group, settings in zip(optimizer.param_groups, found["groups"][name], strict=True):
                _set(group, settings)
        replica.attributes.take(found["attributes"])
    except (KeyError, ValueError) as error:
        raise PeerError(f"what all ranks have alike does not fit what this process has set up: {error!r}") from error
