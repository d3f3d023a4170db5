"""Averages of a model, whose weights all ranks share and whose buffers are this rank's own.

`torch.optim.swa_utils.AveragedModel` averages or copies the buffers of its model. Under DistributedDataParallel each
rank has its own buffers. A rank that takes another rank's average gets that rank's buffers, too. So the buffers of its
own average come from memory, or from the record of its predecessor (the process that a newcomer replaces). They may be
one update behind, if the others have finished a step that this rank left after its backward. Then the average makes
that update again, and only the buffers of the result are used.

This module does NOT keep parameters: those of an average are the same on all ranks (replica.py).
"""

from __future__ import annotations

from typing import Any

import torch

from taskd.errors import PeerError
from taskd.state.replica import Replica, follows


class Averages:
    """The averages among the registered objects."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def note(self) -> dict[str, list[torch.Tensor]]:
        """Return, for each average, its number of updates and its buffers."""
        return {
            name: [tensor.detach().clone() for tensor in (item.n_averaged, *item.module.buffers())]
            for name, item in self._all().items()
        }

    def take_up(self, noted: dict[str, list[torch.Tensor]]) -> None:
        """Another rank's averages have arrived: give each average this rank's buffers again, in their state after the
        updates that it has now. The models' buffers are in place already. Raises PeerError if they are not known."""
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
    """Return the models of which this may be an average. A wrapper and its module count as one."""
    wanted = _form(item.module)
    found = {next((one.data_ptr() for one in model.parameters()), 0): model for model in models.values()}
    return [model for model in found.values() if _form(model) == wanted]


def _form(module: torch.nn.Module) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in (*module.parameters(), *module.buffers())]
