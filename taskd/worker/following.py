"""Notices the calls of registered objects: the steps of an optimizer or a scheduler, the update of a scaler.

An optimizer has hooks for this. Any other object gets a new class, derived from its own class. Nothing is put into its
`__dict__`, because a scheduler's state_dict is everything in there. The objects stay the script's own, and may be
compiled. It does NOT know what a call means (calls.py), and an object that is followed once is followed for ever.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from taskd.errors import UsageError
from taskd.worker.calls import Calls


def follow_optimizer(calls: Calls, name: str, optimizer: torch.optim.Optimizer) -> None:
    """Tell `calls` before and after each of its steps. Raises UsageError."""
    if not hasattr(optimizer, "register_step_pre_hook"):
        raise UsageError(f"{name} is a {type(optimizer).__name__}, not a torch.optim.Optimizer: it cannot be followed")

    def begins(this: torch.optim.Optimizer, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        found = calls.optimizer_begins(name, this, (args[1:], more))
        return None if found is None else ((args[0], *found[0]), found[1])

    # A step may be compiled. The compiler must not take the job's state, which these hooks read, for constant.
    before = torch.compiler.disable(begins)
    after = torch.compiler.disable(lambda *_: calls.optimizer_ended(name))
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def follow_call(calls: Calls, name: str, item: Any, method: str) -> None:
    """Tell `calls` of each call of `item.method` (a scheduler's step, a scaler's update)."""
    kind = type(item)
    original = getattr(kind, method)
    calls.followed.add(name)

    def followed(this: Any, *args: Any, **kwargs: Any) -> Any:
        calls.call_begins(name, method)
        result = original(this, *args, **kwargs)
        calls.call_ended(name, method, bool(args or kwargs))
        return result

    names = {method: functools.wraps(original)(followed), "__module__": kind.__module__, "__doc__": kind.__doc__}
    item.__class__ = type(kind.__name__, (kind,), names)
