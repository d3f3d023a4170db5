"""Follows the update of a step: which optimizers and schedulers were called, and what that means when it is given up.

A step that is given up before its first optimizer has changed nothing that matters. One that is given up after its
last optimizer is finished instead of undone: the calls that earlier steps made after it are made here, if the body did
not reach its own end. What a step's calls usually are is learned from the steps before. Where that does not tell what
is missing, the step can only be undone: between two optimizers, inside of one that communicates, where steps went on in
more than one way, or where objects were registered whose changes are no calls that could be made here (an average of
the weights). So parameters and state of an optimizer are kept aside before it steps whenever its step may have to be
undone.

Invariants: in a step that is being given up no optimizer steps (its pre-hook raises StepAbandoned: with gradients of
zero AdamW would still move). A step counts as updated, not updated or torn, never as two of them. What is missing of a
step is known, or it is not finished: a wrong guess would be a wrong weight.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch

from taskd.core.types import Phase
from taskd.errors import StepAbandoned, UsageError
from taskd.state.moving import Moving
from taskd.state.replica import Replica
from taskd.state.strange import Doubts
from taskd.worker import hooks

MAX_PATTERNS = 16
"""Kinds of steps (with and without scheduler, say) that are remembered; the oldest is forgotten."""
MOVED = "parameters moved without an optimizer in the step that is given up, and no copy of them is"
UNFINISHED = "the step that is given up was left after an update, and what it would have changed then is not known"
TORN = "torn"
NONE = "none"
WHOLE = "whole"


class Updates:
    """The calls of the step under way, and those that earlier steps were made of."""

    def __init__(
        self,
        replica: Replica,
        given_up: Callable[[], bool],
        operations: Callable[[], int],
        doubts: Doubts | None = None,
    ) -> None:
        """`given_up`: whether the step under way is; `operations`: how many this process has begun so far."""
        self._replica = replica
        self._doubts = doubts or Doubts(lambda _: None)
        self.moving = Moving(replica)
        self._given_up = given_up
        self._operations = operations
        self._operations_then = 0  # when the last optimizer had stepped
        self._operations_at_end = -1  # of the last step; -1: that tells nothing
        self._told_between = False
        self.unseen = False
        """A step changes things without a call that could be made in its place: objects, attributes of modules."""
        self.late = False
        """Steps change attributes of modules after their backward has begun."""
        self._ends_late = False
        """Steps call something after their last optimizer at which a step that is given up ends."""
        self._watching = self._rehearsal = False
        self.in_body = False
        """What is called now belongs to the body of the loop, and not to its step."""
        self._outside: dict[str, None] = {}
        self._calls: list[str] = []
        self.stepping = False
        """A registered optimizer is at work; others that step meanwhile are parts of it."""
        self._at_work = ""
        self._patterns: dict[tuple[str, ...], None] = {}
        self._followed: set[str] = set()
        self._called: set[str] = set()  # of those, the ones whose habits are known: they were called, here or elsewhere
        self._with_arguments: set[str] = set()  # and those that nobody else could call
        self._aside: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._aside_states: dict[str, list[tuple[Any, dict[str, Any]]]] = {}  # in this step: each state, by parameter
        self._closures: set[str] = set()
        """Optimizers that call for gradients while they step: when it is given up, of those that do not count."""
        self._talkers: set[str] = set()
        """Optimizers that communicate while they step, and so may be left in the middle of it."""
        self._operations_before = 0  # when the optimizer at work began
        self.torn_by = ""
        """Why the last step that was given up is torn."""
        self._spoilt = False
        """Such an optimizer was at work when this step was given up."""

    # ---- registration -----------------------------------------------------------------------------------------

    def follow_optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        """Be told before and after each of its steps."""
        if not hasattr(optimizer, "register_step_pre_hook"):
            raise UsageError(
                f"{name} is a {type(optimizer).__name__}, not a torch.optim.Optimizer: it cannot be followed"
            )
        # A step may be compiled. What looks at the job's state is no part of what a compiler may take for constant.
        before = torch.compiler.disable(lambda _, args, more: self._before_optimizer(name, (*args[1:], *more.values())))
        after = torch.compiler.disable(lambda *_: self._after_optimizer(name))
        optimizer.register_step_pre_hook(before)
        optimizer.register_step_post_hook(after)

    def follow_call(self, name: str, item: Any, method: str) -> None:
        """Be told of each call of `item.method` (a scheduler's step, a scaler's update).

        Through a class of its own, because a scheduler's state_dict is all that stands in its `__dict__`.
        """
        kind = type(item)
        original = getattr(kind, method)
        self._followed.add(name)

        def followed(this: Any, *args: Any, **kwargs: Any) -> Any:
            if self._watching and self._given_up() and not self._optimizers():
                raise StepAbandoned(f"{name}.{method}() belongs to a step that is given up")
            result = original(this, *args, **kwargs)
            if self.in_body:
                self._outside[f"{name}.{method}() is called"] = None
            self._called.add(name)
            if args or kwargs:
                self._with_arguments.add(name)
            if self._watching:
                self._calls.append(name)
            return result

        names = {method: functools.wraps(original)(followed), "__module__": kind.__module__, "__doc__": kind.__doc__}
        item.__class__ = type(kind.__name__, (kind,), names)

    # ---- habits -----------------------------------------------------------------------------------------------

    def habits(self) -> dict[str, Any]:
        """What is known of steps by now, for whoever goes on in this rank's place."""
        return {
            "steps": [*self._patterns],
            "ends_late": self._ends_late,
            "unseen": self.unseen,
            "late": self.late,
            "usual": self.moving.usual,
            "called": self._called,
            "with_arguments": self._with_arguments,
            "closures": self._closures,
            "talkers": self._talkers,
        }

    def inherit(self, habits: dict[str, Any]) -> None:
        """Go on with what this rank knew in its life before, so that nothing has to be learned again: what is not known
        of a step costs a copy of all that an optimizer changes, just when the others wait."""
        self._patterns = dict.fromkeys(habits["steps"])
        self._ends_late |= habits["ends_late"]
        self.unseen |= habits["unseen"]
        self.late |= habits["late"]
        self.moving.usual |= habits["usual"]
        for known, name in (
            (self._called, "called"),
            (self._with_arguments, "with_arguments"),
            (self._closures, "closures"),
            (self._talkers, "talkers"),
        ):
            known |= habits[name]

    # ---- a step -----------------------------------------------------------------------------------------------

    def loop_begins(self) -> None:
        """What was done since the last step was no part of a loop."""
        self._operations_at_end = -1
        self.moving.look()

    def repaired(self) -> None:
        """A repair communicates, and puts parameters in place."""
        self._operations_at_end = -1
        self.moving.forget()

    def outside(self) -> list[str]:
        """What the body of the loop has done outside of its steps, of which nobody knows how often it has happened."""
        return [*self._outside]

    def begin(self, rehearsal: bool = False) -> bool:
        """A step begins. Whether something was communicated since the one before, which is said once."""
        between = 0 <= self._operations_at_end < self._operations() and not self._told_between
        self._told_between |= between
        self._watching = True
        self._rehearsal, self.in_body = rehearsal, False
        self.stepping = False
        if self.moving.begin():
            self._outside["the parameters are changed"] = None
        self._calls = []
        self._spoilt = False
        if not self._aside_states:
            self._aside.clear()  # the last step had no need of it
        self._aside_states = {}
        return between

    def forward_ended(self) -> None:
        """A backward begins."""
        if self.stepping:
            self._closures.add(self._at_work)

    def may_end_here(self) -> None:
        """The step calls something, no collective, at which it would end if it were given up."""
        self._ends_late |= bool(self._optimizers())

    def commit(self) -> bool:
        """The step ended as it should; its calls are remembered. Whether an optimizer was among them."""
        self._watching = False
        pattern = tuple(self._calls)
        self._patterns.pop(pattern, None)
        self._patterns[pattern] = None
        if len(self._patterns) > MAX_PATTERNS:
            del self._patterns[next(iter(self._patterns))]
        updated = bool(self._optimizers())
        self.unseen |= self.moving.end()
        self._operations_at_end = self._operations()
        self._ends_late |= updated and self._operations_at_end != self._operations_then
        return updated

    def give_up(self, to_its_end: bool, moved: bool = False) -> str:
        """The step is given up: NONE (nothing was updated, or it was undone), WHOLE (it was finished), or TORN.

        `to_its_end`: the body ran to its end all the same, so nothing is missing of it. `moved`: it has changed what no
        call of those that are followed changes, so nobody knows what is missing.
        """
        self._watching = False
        self._operations_at_end = -1
        if self.stepping:  # left in the middle of its work
            self._calls.append(self._at_work)
            self.moving.optimizer_ended(self._at_work)
            self.stepping, self._spoilt = False, True
        moved |= self.moving.end()
        self.moving.forget()
        if not self._optimizers():
            self._clear_halves()
            return self._put_back()
        if self._spoilt:
            return self._undo()
        if to_its_end:
            return WHOLE
        rest = self._rest(tuple(self._calls))
        if rest is None or moved:
            return self._undo()
        for name in rest:
            item = self._replica.others[name]
            item.update() if hasattr(item, "update") else item.step()
        return WHOLE

    def _optimizers(self) -> list[str]:
        return [name for name in self._calls if name in self._replica.optimizers]

    def _rests(self, so_far: tuple[str, ...]) -> set[tuple[str, ...]]:
        """How steps that began like this went on."""
        return {pattern[len(so_far) :] for pattern in self._patterns if pattern[: len(so_far)] == so_far}

    def _rest(self, so_far: tuple[str, ...]) -> tuple[str, ...] | None:
        """What is missing of a step that was left after these calls, if it can be made up for; else None."""
        rests = self._rests(so_far)
        if len(rests) != 1 or self.unseen or self._followed - self._called:
            return None
        rest = rests.pop()
        return None if any(name in self._replica.optimizers or name in self._with_arguments for name in rest) else rest

    def _before_optimizer(self, name: str, given: tuple[Any, ...] = ()) -> None:
        if not self._watching:
            return
        if self._given_up():
            for closure in filter(callable, given if self._rehearsal else ()):
                with torch.enable_grad():
                    closure()  # in which forward and backward are, and all that there is to rehearse
            raise StepAbandoned(f"{name}.step() belongs to a step that is given up")
        if not self._optimizers():
            hooks.mark_phase(Phase.OPTIMIZER)
        self._doubts.look(f"what {name} changes", self._keep_before, name)
        self._operations_before = self._operations()
        self.stepping, self._at_work = True, name

    def _keep_before(self, name: str) -> None:
        if name not in self._aside_states and self._may_be_undone(name):
            self._keep_aside(name)
        self.moving.optimizer_begins()

    def _after_optimizer(self, name: str) -> None:
        self.stepping = False
        self._spoilt |= name in self._closures and self._given_up()
        if self._watching:
            self._calls.append(name)
            self._doubts.look(f"what {name} has changed", self.moving.optimizer_ended, name)
            self._operations_then = self._operations()
            if self._operations_then != self._operations_before:
                self._talkers.add(name)
            hooks.mark_phase(Phase.APPLIED)

    def _may_be_undone(self, name: str) -> bool:
        """Whether this step could be given up, once this optimizer begins, at a place where it cannot be finished."""
        so_far = (*self._calls, name)
        rests = self._rests(so_far)
        if not rests or name in self._closures or name in self._talkers:
            return True
        goes_on = any(name in self._replica.optimizers for rest in rests for name in rest)
        return goes_on or (self._ends_late and self._rest(so_far) is None)

    def _clear_halves(self) -> None:
        """What a scaler and its optimizers say to each other within one step, and what it has not come to: done again,
        a scaler that has divided the gradients of this step would not divide those of the next attempt."""
        for item in self._replica.others.values():
            getattr(item, "_per_optimizer_states", {}).clear()
        for optimizer in self._replica.optimizers.values():
            for word in ("grad_scale", "found_inf"):
                vars(optimizer).pop(word, None)

    # ---- undoing an optimizer ---------------------------------------------------------------------------------

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
        for source, aside in kept:
            aside.copy_(source)
        self._aside_states[name] = [
            (
                parameter,
                {key: it if isinstance(it, torch.Tensor) else copy.deepcopy(it) for key, it in state.items()},
            )
            for parameter, state in self._replica.optimizers[name].state.items()
        ]

    def _undo(self) -> str:
        self._clear_halves()
        if not self._aside_states.keys() >= {*self._optimizers()}:
            self.torn_by = UNFINISHED
            return TORN
        for name in self._optimizers():
            found = self._replica.optimizers[name].state
            found.clear()
            for parameter, values in self._aside_states[name]:
                found[parameter].update(values)
            for source, aside in self._aside[name]:
                source.copy_(aside)
        return self._put_back()

    def _put_back(self) -> str:
        """Parameters that moved without an optimizer stand again as the step found them, or the step is torn."""
        if self.moving.put_back():
            return NONE
        self.torn_by = MOVED
        return TORN
