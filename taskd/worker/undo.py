"""Copies of what optimizers change, made before they step, so that a step can be undone.

They are made only if a step may have to be undone (habits.py): a copy costs as much memory as the parameters and the
optimizer's state together. The next step reuses the memory of the last copy. The memory is freed once a step has needed
no copy. Parameters that change without an optimizer are not handled here (state/moving.py).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from taskd.state.replica import Replica
from taskd.state.shards import shard_of


class Undo:
    """The copies of the current step."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._tensors: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._states: dict[str, list[tuple[Any, dict[str, Any]]]] = {}  # in this step: each state, by parameter

    @property
    def keeps_memory(self) -> bool:
        """Whether copies of this step or the last one are held."""
        return bool(self._tensors)

    def begin(self) -> None:
        """Begin a step."""
        if not self._states:
            self._tensors.clear()  # the last step needed no copy
        self._states = {}

    def keep(self, name: str) -> None:
        """Copy what this optimizer is about to change, once per step."""
        if name in self._states:
            return
        tensors = self._tensors_of(name)
        kept = self._tensors.get(name, [])
        if [source.data_ptr() for source, _ in kept] != [tensor.data_ptr() for tensor in tensors]:
            kept = [(tensor, torch.empty_like(tensor)) for tensor in tensors]
            self._tensors[name] = kept
        for source, aside in kept:
            aside.copy_(source)
        self._states[name] = [
            (
                parameter,
                {key: it if isinstance(it, torch.Tensor) else copy.deepcopy(it) for key, it in state.items()},
            )
            for parameter, state in self._replica.optimizers[name].state.items()
        ]

    def put_back(self, names: Sequence[str]) -> bool:
        """Undo these optimizers' steps. If a copy is missing, return False and do nothing."""
        if not self._states.keys() >= {*names}:
            return False
        for name in names:
            found = self._replica.optimizers[name].state
            found.clear()
            for parameter, values in self._states[name]:
                found[parameter].update(values)
            for source, aside in self._tensors[name]:
                source.copy_(aside)
        return True

    def _tensors_of(self, name: str) -> list[torch.Tensor]:
        optimizer = self._replica.optimizers[name]
        found = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for state in optimizer.state.values():
            found += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return [shard_of(tensor).detach() for tensor in found]
