"""Handles what taskd does not understand in a user's objects, and leaves alone: strange tensors, looks that fail.

Every look into an object of the user is made through `Doubts.look`. If it raises, the object is not understood. From
then on nothing is copied, digested or put back in this process. The job trains as it would under torchrun, and a death
makes all start over. That is said once, with the reason. taskd's own errors (UsageError, PeerError) pass through, and
so does StepAbandoned.

Some tensors do not have their contents at their address. They are recognized before anything is read of them.
This module does NOT judge what a script does with its objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from taskd.errors import TaskdError
from taskd.state import fully_sharded
from taskd.state.replica import Replica
from taskd.state.shards import alike, is_shard, shard_of

STARTS_OVER = "if a rank dies, this job cannot be healed in place and starts over"
_MOST = 160
_PLAIN = torch.Tensor.__torch_dispatch__
Result = TypeVar("Result")


class Doubts:
    """The doubts of one session."""

    def __init__(self, say: Callable[[list[str]], None]) -> None:
        self._say = say
        self.sentence = ""
        """Why this process only trains; empty: everything is understood."""

    def look(self, at: str, function: Callable[..., Result], *args: Any) -> Result | None:
        """Return the result of this look at the user's objects. None, once something is not understood."""
        if self.sentence:
            return None
        try:
            return function(*args)
        except TaskdError:
            raise
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {lines[0]}"[:_MOST]
            self.begin(f"taskd does not understand {at} ({why}) and leaves all as it is: {STARTS_OVER}")
            return None

    def begin(self, sentence: str) -> None:
        """From now on this process only trains."""
        if not self.sentence:
            self.sentence = sentence
            self._say([sentence])


def among(replica: Replica, unkept: str = "") -> str:
    """Return a sentence about a strange tensor among the registered ones. Empty: there is none. `unkept`: why a rank
    does not keep what only it has."""
    ranks = alike(tensor for _, tensor in replica.tensors())
    for name, tensor in replica.tensors():
        if is_shard(tensor) and not replica.kept and (ranks is None or len(ranks) < 2):
            why = f"the model is sharded ({name} is a DTensor), a rank's shards have no copy, and none is kept"
            return f"{why}{unkept and f', since {unkept}'}: {STARTS_OVER}"
        shard = shard_of(tensor) if isinstance(tensor, torch.nn.Parameter) else tensor
        if not torch.nn.parameter.is_lazy(shard) and (what := strange(shard)):
            return f"{name} is {what}, which taskd does not copy: {STARTS_OVER}"
    if ranks is not None and not fully_sharded.is_known():
        return f"this torch cannot reset a sharded model whose step is given up: {STARTS_OVER}"
    return ""


def strange(tensor: torch.Tensor) -> str:
    """Return why the contents of this tensor cannot be copied by its address. Empty: they can."""
    if tensor.is_meta:
        return "on the meta device"
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return "sparse"
    if tensor.is_quantized:
        return "quantized"
    kind: Any = type(tensor)
    if kind.__torch_dispatch__ is not _PLAIN:
        return f"a {kind.__name__}, a tensor of its own kind"
    return ""


def real_optimizer(optimizer: Any) -> Any:
    """Return the optimizer that does the work, if this one only delegates, as Accelerate's does. Such an optimizer was
    made without torch's constructor, and has the other one as an attribute."""
    if "_optimizer_step_pre_hooks" in getattr(optimizer, "__dict__", {}):
        return optimizer
    inner = getattr(optimizer, "__dict__", {}).get("optimizer")
    if isinstance(inner, torch.optim.Optimizer) and inner is not optimizer:
        return real_optimizer(inner)
    return optimizer
