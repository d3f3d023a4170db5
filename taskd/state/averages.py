"""Averages of a model, whose weights all ranks share and whose buffers are this rank's own.

`torch.optim.swa_utils.AveragedModel` averages or copies the buffers of its model, and under DistributedDataParallel
each rank has its own. A rank that takes another one's average takes too much: the buffers of its own average come from
memory, or from the record of its life before. They may be one update behind, when the others have done a step that
this rank left after its backward. Then the average itself makes that update once more, and only the buffers of the
result are used.

It keeps no parameters: those of an average are the same on all ranks (replica.py).
"""

from __future__ import annotations

from typing import Any

import torch

from taskd.errors import PeerError
from taskd.state.replica import Replica, follows


class Averages:
    """Those among the registered objects."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def note(self) -> dict[str, list[torch.Tensor]]:
        """Of each: how many updates it holds, and its buffers."""
        return {
            name: [tensor.detach().clone() for tensor in (item.n_averaged, *item.module.buffers())]
            for name, item in self._all().items()
        }

    def take_up(self, noted: dict[str, list[torch.Tensor]]) -> None:
        """Another rank's averages have come in: give each its own buffers again, as they are after the updates that it
        holds now. The models' buffers are in place. Raises PeerError where that cannot be known."""
        for name, item in self._all().items():
            count, *buffers = noted[name]
            for buffer, own in zip(item.module.buffers(), buffers, strict=True):
                buffer.detach().copy_(own)
            behind = int(item.n_averaged) - int(count)
            if behind and buffers:
                self._update_again(name, item, behind)

    def _update_again(self, name: str, item: Any, behind: int) -> None:
        models = _sources(item, self._replica.models)
        if behind != 1 or len(models) != 1:
            why = f"is {behind} updates behind" if behind != 1 else f"may belong to {len(models)} of the models"
            raise PeerError(f"the buffers of {name}, which each rank has for itself, cannot be made again: it {why}")
        state = [tensor.detach() for tensor in (item.n_averaged, *item.module.parameters())]
        kept = [tensor.clone() for tensor in state]
        item.n_averaged -= behind
        item.update_parameters(models[0])
        for tensor, contents in zip(state, kept, strict=True):
            tensor.copy_(contents)

    def _all(self) -> dict[str, Any]:
        return {name: item for name, item in self._replica.others.items() if follows(item)}


def _sources(item: Any, models: dict[str, torch.nn.Module]) -> list[torch.nn.Module]:
    """The models that this one may be an average of. A wrapper and what it wraps are one."""
    wanted = _form(item.module)
    found = {next((one.data_ptr() for one in model.parameters()), 0): model for model in models.values()}
    return [model for model in found.values() if _form(model) == wanted]


def _form(module: torch.nn.Module) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in (*module.parameters(), *module.buffers())]
