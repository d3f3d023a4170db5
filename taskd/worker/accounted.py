"""Which tensors are seen to after a repair: registered, kept, compared, given as a state, or taskd's own.

All others that a step has changed are leftovers (worker/leftovers.py). Tensors are told apart by their memory where a
view of one is as good as itself, and by their ids otherwise.
"""

from __future__ import annotations

from typing import Any

import torch

from taskd.state.held import leaves_of
from taskd.state.leftover import memory_of
from taskd.state.places import space_of
from taskd.state.shards import shard_of
from taskd.state.unaccounted import reached
from taskd.state.variables import seen_to
from taskd.worker.registered import Registered


class Accounted:
    """The tensors that are seen to, by what a session has registered."""

    def __init__(self, registered: Registered) -> None:
        self._registered = registered

    def memory(self) -> set[int]:
        """Return the memory of registered tensors, of the gradients of parameters, and of optimizers' states."""
        registered = self._registered
        own = [one for _, one in registered.replica.tensors()]
        own += [one.grad for one in registered.local.parameters() if one.grad is not None]
        own += reached([*(one.state for one in registered.replica.optimizers.values())])
        return {memory_of(shard_of(one)) for one in own} - {0}

    def given_by_states(self) -> set[int]:
        """Return the memory of the tensors that registered objects give as their states."""
        own = (*self._registered.local.objects.values(), *self._registered.replica.others.values())
        states = [one.state_dict() for one in own if hasattr(one, "state_dict")]
        return {memory_of(shard_of(one)) for one in reached(states)} - {0}

    def ids(self, taskds: tuple[Any, ...]) -> set[int]:
        """Return the ids of tensors that are seen to in another way. `taskds`: objects of taskd that keep copies."""
        variables = self._registered.local.variables
        held = variables.held(self._registered.local.known)
        ids = {id(leaf) for value in held.values() for leaf in leaves_of(value)}
        return ids | self.kept(taskds) | seen_to(variables)

    def kept(self, taskds: tuple[Any, ...]) -> set[int]:
        """Return the ids of those that are put back as well, or are copies."""
        local, replica = self._registered.local, self._registered.replica
        kept = [one for model in replica.models.values() for one in model.modules() if _keeps_by_itself(one)]
        own = (*local.objects.values(), *replica.others.values(), *kept)
        found = reached([*own, *map(space_of, own), *(one.param_groups for one in replica.optimizers.values())])
        found += reached(replica.fully_sharded.objects, ("torch.distributed",))
        calls = self._registered.calls
        found += reached([calls.moving, calls.reversal.copies, *taskds], ("taskd.",), {id(replica)})
        return {*map(id, found)}


def _keeps_by_itself(module: torch.nn.Module) -> bool:
    """Whether a module gives what it keeps in a way of its own."""
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state
