"""Follows the update of a step: which optimizers and schedulers were called, and what that means when it is given up.

A step that is given up before its first optimizer has changed nothing that matters. One that is given up after its
last optimizer is finished instead of undone: the calls that earlier steps made after it are made here. Between two
optimizers of one step neither holds, so the parameters and the state of every optimizer that is not the last one are
kept aside before it steps, and put back. What a step's calls usually are is learned from the steps before.

Invariants: in a step that is being given up no optimizer steps (its pre-hook raises StepAbandoned: with gradients of
zero AdamW would still move). A step counts as updated, not updated or torn, never as two of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from taskd.core.types import Phase
from taskd.errors import StepAbandoned, UsageError
from taskd.state.replica import Replica
from taskd.worker import hooks

MAX_PATTERNS = 16
"""Kinds of steps (with and without scheduler, say) that are remembered; the oldest is forgotten."""
TORN = "torn"
NONE = "none"
WHOLE = "whole"


class Updates:
    """The calls of the step under way, and those that earlier steps were made of."""

    def __init__(self, replica: Replica, given_up: Callable[[], bool]) -> None:
        self._replica = replica
        self._given_up = given_up  # whether this step is being given up
        self._watching = False
        self._calls: list[str] = []
        self.stepping = False
        """A registered optimizer is at work; others that step meanwhile are parts of it."""
        self._patterns: dict[tuple[str, ...], None] = {}
        self._aside: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._aside_small: dict[str, Any] = {}

    # ---- registration -----------------------------------------------------------------------------------------

    def follow_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Be told before and after each of its steps."""
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise UsageError(
                f"{name} is a {type(optimizer).__name__}, not a torch.optim.Optimizer: it cannot be followed"
            )
        optimizer.register_step_pre_hook(lambda *_: self._before_optimizer(name))
        optimizer.register_step_post_hook(lambda *_: self._after_optimizer(name))

    def follow_call(self, name: str, item: Any, method: str) -> None:
        """Be told of each call of `item.method` (a scheduler's step, a scaler's update).

        Through a class of its own, because a scheduler's state_dict is all that stands in its `__dict__`.
        """
        kind = type(item)
        original = getattr(kind, method)

        def followed(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._watching and self._given_up() and not self._optimizers():
                raise StepAbandoned(f"{name}.{method}() belongs to a step that is given up")
            result = original(this, *args, **kwargs)
            if self._watching:
                self._calls.append(name)
            return result

        names = {method: functools.wraps(original)(followed), "__module__": kind.__module__, "__doc__": kind.__doc__}
        item.__class__ = type(kind.__name__, (kind,), names)

    # ---- a step -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A step begins."""
        self._watching = True
        self.stepping = False
        self._calls = []

    def commit(self) -> bool:
        """The step ended as it should; its calls are remembered. Whether an optimizer was among them."""
        self._watching = False
        pattern = tuple(self._calls)
        self._patterns.pop(pattern, None)
        self._patterns[pattern] = None
        if len(self._patterns) > MAX_PATTERNS:
            del self._patterns[next(iter(self._patterns))]
        return bool(self._optimizers())

    def give_up(self) -> str:
        """The step is given up: NONE (nothing was updated, or it was undone), WHOLE (it was finished), or TORN."""
        self._watching = False
        done = tuple(self._calls)
        if not self._optimizers():
            return NONE
        likely = self._likely(done)
        if likely is None:
            return TORN
        rest = likely[len(done) :]
        if any(name in self._replica.optimizers for name in rest):
            return self._undo()
        for name in rest:
            item = self._replica.others[name]
            item.update() if hasattr(item, "update") else item.step()
        return WHOLE

    def _optimizers(self) -> list[str]:
        return [name for name in self._calls if name in self._replica.optimizers]

    def _likely(self, done: tuple[str, ...]) -> tuple[str, ...] | None:
        """What this step would have been, had it gone on: the one kind of step that began like this, else None."""
        found = [pattern for pattern in self._patterns if pattern[: len(done)] == done]
        return found[0] if len(found) == 1 else None

    def _before_optimizer(self, name: str) -> None:
        if not self._watching:
            return
        if self._given_up():
            raise StepAbandoned(f"{name}.step() belongs to a step that is given up")
        if not self._optimizers():
            hooks.mark_phase(Phase.OPTIMIZER)
        if len(self._replica.optimizers) > 1 and not self._is_last(name):
            self._keep_aside(name)
        self.stepping = True

    def _after_optimizer(self, name: str) -> None:
        self.stepping = False
        if self._watching:
            self._calls.append(name)
            hooks.mark_phase(Phase.APPLIED)

    def _is_last(self, name: str) -> bool:
        so_far = (*self._calls, name)
        found = [pattern[len(so_far) :] for pattern in self._patterns if pattern[: len(so_far)] == so_far]
        return bool(found) and not any(later in self._replica.optimizers for rest in found for later in rest)

    # ---- undoing an optimizer that is not the last of its step ------------------------------------------------

    def _tensors(self, name: str) -> list[torch.Tensor]:
        optimizer = self._replica.optimizers[name]
        found = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for state in optimizer.state.values():
            found += [value for value in state.values() if isinstance(value, torch.Tensor)]
        return [tensor.detach() for tensor in found]

    def _keep_aside(self, name: str) -> None:
        tensors = self._tensors(name)
        kept = self._aside.get(name, [])
        if [source.data_ptr() for source, _ in kept] != [tensor.data_ptr() for tensor in tensors]:
            kept = [(tensor, torch.empty_like(tensor)) for tensor in tensors]
            self._aside[name] = kept
        for source, copy in kept:
            copy.copy_(source)
        self._aside_small[name] = len(self._replica.optimizers[name].state)

    def _undo(self) -> str:
        for name in self._optimizers():
            optimizer = self._replica.optimizers[name]
            if name not in self._aside or self._aside_small.get(name) != len(optimizer.state):
                return TORN
            for source, copy in self._aside[name]:
                source.copy_(copy)
        return NONE
