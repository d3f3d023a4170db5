"""Follows the update of a step: which optimizers and schedulers were called, and what that means when it is given up.

A step that is given up before its first optimizer has changed nothing that matters. A step that is given up after its
last optimizer is finished, not undone. If its body did not reach the end, the missing calls are made here: the calls
that earlier steps made after that optimizer. They are learned from earlier steps (habits.py).

If the missing calls are not known, the step can only be undone. This is so between two optimizers, inside an optimizer
that communicates, and if earlier steps went on in more than one way. It is also so if a registered object changes
without a call that could be made here (an average of the weights). So whenever an optimizer's step may have to be
undone, its parameters and state are copied before it steps (undo.py).

Invariants: in a step that is being given up no optimizer steps (its pre-hook raises StepAbandoned: with gradients of
zero AdamW would still move). A step counts as updated, not updated or torn, never as two of them. A step is finished
only if its missing calls are known: a wrong guess would lead to wrong weights.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch

from taskd.core.types import Phase
from taskd.errors import StepAbandoned
from taskd.state.moving import Moving
from taskd.state.replica import Replica
from taskd.state.strange import Doubts
from taskd.worker import hooks
from taskd.worker.communication import Communication
from taskd.worker.habits import Habits
from taskd.worker.rehearsing import Given, Rehearsing
from taskd.worker.reversal import Reversal
from taskd.worker.step_state import StepEvent, StepMachine, StepState


class Outcome(Enum):
    """What this rank holds of a step that was given up."""

    NOTHING = auto()  # nothing was updated, or the update was undone
    WHOLE = auto()  # the complete update
    TORN = auto()  # a part of the update


class Calls:
    """The calls of the current step. following.py notices them, and reversal.py takes them back."""

    def __init__(
        self,
        replica: Replica,
        given_up: Callable[[], bool],
        operations: Callable[[], int],
        step: StepMachine,
        doubts: Doubts,
    ) -> None:
        """`given_up`: whether the current step is given up; `operations`: collectives that this process has begun."""
        self._replica, self._doubts, self._step = replica, doubts, step
        self._given_up = given_up
        self.moving = Moving(replica)
        self.habits = Habits()
        self.come_to_gate: Callable[[], None] = lambda: None
        """Called before an optimizer steps; may raise StepAbandoned (gate.py)."""
        self.reversal = Reversal(replica, self.moving)
        self.followed: set[str] = set()
        """Names of the schedulers and similar objects whose calls are noticed."""
        self._communication = Communication(operations)
        self._outside: dict[str, None] = {}
        self._made: list[str] = []
        self._at_work = ""  # the optimizer that is stepping; still set after the body: its step was interrupted
        self.rehearsing = Rehearsing()
        self._spoilt = False  # given up inside an optimizer step that was interrupted, or that evaluates a closure

    # ---- what the script calls --------------------------------------------------------------------------------

    def call_begins(self, name: str, method: str) -> None:
        """Note that a scheduler or a similar object is called. Raises StepAbandoned in a step that is given up."""
        if self._watching and self._given_up() and self.rehearsing.under_way:
            self.rehearsing.go_on()
        elif self._watching and self._given_up() and not self._optimizers():
            raise StepAbandoned(f"{name}.{method}() belongs to a step that is given up")

    def call_ended(self, name: str, method: str, with_arguments: bool) -> None:
        """Note that the call has ended."""
        if self._step.state is StepState.LOOP:
            self._outside[f"{name}.{method}() is called"] = None
        self.habits.called.add(name)
        if with_arguments:
            self.habits.with_arguments.add(name)
        if self._watching:
            self._made.append(name)

    def optimizer_begins(self, name: str, optimizer: torch.optim.Optimizer, given: Given) -> Given | None:
        """Note that an optimizer is about to step; `given`: the arguments. Return other arguments, or None. Raises
        StepAbandoned, as call_begins()."""
        rehearsal = self.rehearsing.under_way
        if self._step.state is StepState.BODY and not rehearsal and not self._given_up():
            self.come_to_gate()  # even if objects are not understood: the other ranks wait there
        if not self._watching:
            return None
        if self._given_up():
            if not rehearsal:
                raise StepAbandoned(f"{name}.step() belongs to a step that is given up")
            given = self.rehearsing.leave_out(name, optimizer, given)
            self._step.happens(StepEvent.OPTIMIZER_BEGAN)
            return given
        if not self._optimizers():
            hooks.mark_phase(Phase.OPTIMIZER)
        self._doubts.look(f"what {name} changes", self._keep_before, name)
        self._communication.optimizer_begins()
        self._step.happens(StepEvent.OPTIMIZER_BEGAN)
        self._at_work = name
        return None

    def _keep_before(self, name: str) -> None:
        if self.habits.may_be_undone((*self._made, name), self._replica.optimizers, self.followed):
            self.reversal.copies.keep(name)
        self.moving.optimizer_begins()

    def optimizer_ended(self, name: str) -> None:
        """Note that an optimizer has stepped."""
        if self._step.under_way:
            self._step.happens(StepEvent.OPTIMIZER_ENDED)
        if not self._watching:
            return
        if self.rehearsing.is_behind:
            self.rehearsing.optimizer_ended(name)
            self._doubts.look(f"what {name} has changed", self.moving.optimizer_ended, name)
            return
        self._at_work = ""
        self._spoilt |= name in self.habits.closures and self._given_up()
        self._made.append(name)
        self._doubts.look(f"what {name} has changed", self.moving.optimizer_ended, name)
        if self._communication.optimizer_ended():
            self.habits.talkers.add(name)
        hooks.mark_phase(Phase.APPLIED)

    @property
    def _watching(self) -> bool:
        """Whether the calls of the current step count. They never count once an object was not understood."""
        return self._step.under_way and not self._doubts.sentence

    # ---- between steps ----------------------------------------------------------------------------------------

    def pack_habits(self) -> dict[str, Any]:
        """Pack what is known about steps, for a newcomer that replaces this rank."""
        return self.habits.pack() | {"usual": self.moving.usual}

    def inherit(self, packed: dict[str, Any]) -> None:
        """Go on with the habits that this rank's life before knew."""
        self.habits.inherit(packed)
        self.moving.usual |= packed["usual"]

    def loop_begins(self) -> None:
        """Forget what was done since the last step: it was not part of a loop."""
        self._communication.forget()
        self.moving.look()

    def repaired(self) -> None:
        """Forget what the repair did: it communicates, and writes parameters."""
        self._communication.forget()
        self.moving.forget()

    def outside(self) -> list[str]:
        """List what the loop's body has done outside of its steps. Nobody knows how often that has happened."""
        return [*self._outside]

    # ---- a step -----------------------------------------------------------------------------------------------

    def begin(self, rehearsal: bool = False) -> bool:
        """Begin a step. Return whether this rank has communicated since the step before; this is reported once."""
        between = self._communication.begin()
        self.rehearsing.begin(rehearsal)
        if self.moving.begin():
            self._outside["the parameters are changed"] = None
        self._made, self._at_work = [], ""
        self._spoilt = False
        self.reversal.copies.begin()
        return between

    def forward_ended(self) -> None:
        """Note that a backward begins."""
        if self._at_work:
            self.habits.closures.add(self._at_work)

    def may_end_here(self) -> None:
        """Note a call, other than a collective, at which the step would end if it were given up."""
        self.habits.ends_late |= bool(self._optimizers())

    def commit(self) -> bool:
        """Remember the calls of a step that ended normally. Return whether an optimizer was among them."""
        self.habits.remember(tuple(self._made))
        updated = bool(self._optimizers())
        self.habits.unseen |= self.moving.end()
        self.habits.ends_late |= self._communication.end() and updated
        return updated

    def rehearsed(self, ended_by: str) -> None:
        """End the rehearsal of a step; nothing of it is kept. `ended_by`: see Rehearsing.leave."""
        self.rehearsing.leave(ended_by)
        self._leave()
        self.reversal.take_back(self._optimizers())

    def give_up(self, to_its_end: bool, moved: bool = False) -> Outcome:
        """Give up the step, and return what this rank then holds.

        `to_its_end`: the body still ran to its end, so none of its calls is missing. `moved`: the body changed
        something that none of the followed calls changes, so nobody knows what is missing.
        """
        moved |= self._leave()
        optimizers = self._optimizers()
        may_be_finished = bool(optimizers) and not self._spoilt
        if may_be_finished and to_its_end:
            return Outcome.WHOLE
        rest = self.habits.rest(tuple(self._made), self._replica.optimizers, self.followed)
        if rest is None or moved or not may_be_finished:
            why = self.reversal.take_back(optimizers)
            self.reversal.torn_by = why or self.reversal.torn_by
            return Outcome.TORN if why else Outcome.NOTHING
        for name in rest:
            item = self._replica.others[name]
            item.update() if hasattr(item, "update") else item.step()
        return Outcome.WHOLE

    def _leave(self) -> bool:
        """Leave the body. Return whether parameters have changed after an update."""
        self._communication.forget()
        if self._at_work:
            self._made.append(self._at_work)
            self.moving.optimizer_ended(self._at_work)
            self._at_work, self._spoilt = "", True
        moved = self.moving.end()
        self.moving.forget()
        return moved

    def _optimizers(self) -> list[str]:
        return [name for name in self._made if name in self._replica.optimizers]
