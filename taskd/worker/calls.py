"""Follows the update of a step: which optimizers and schedulers were called, and what that means when it is given up.

A step that is given up before its first optimizer has changed nothing that matters. One that is given up after its
last optimizer is finished instead of undone: the calls that earlier steps made after it are made here, if the body did
not reach its own end. What a step's calls usually are is learned from the steps before (habits.py). Where that does not
tell what is missing, the step can only be undone: between two optimizers, inside of one that communicates, where steps
went on in more than one way, or where objects were registered whose changes are no calls that could be made here (an
average of the weights). So parameters and state of an optimizer are kept aside before it steps whenever its step may
have to be undone (undo.py).

Invariants: in a step that is being given up no optimizer steps (its pre-hook raises StepAbandoned: with gradients of
zero AdamW would still move). A step counts as updated, not updated or torn, never as two of them. What is missing of a
step is known, or it is not finished: a wrong guess would be a wrong weight.
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
from taskd.worker.reversal import Reversal
from taskd.worker.step_state import StepEvent, StepMachine, StepState


class Outcome(Enum):
    """What this rank holds of a step that was given up."""

    NOTHING = auto()  # nothing was updated, or it was undone
    WHOLE = auto()  # its update, finished
    TORN = auto()  # a part of it


class Calls:
    """Those of the step under way. They are noticed by following.py, and taken back by reversal.py."""

    def __init__(
        self,
        replica: Replica,
        given_up: Callable[[], bool],
        operations: Callable[[], int],
        step: StepMachine,
        doubts: Doubts,
    ) -> None:
        """`given_up`: whether the step under way is; `operations`: how many this process has begun so far."""
        self._replica, self._doubts, self._step = replica, doubts, step
        self._given_up = given_up
        self.moving = Moving(replica)
        self.habits = Habits()
        self.come_to_gate: Callable[[], None] = lambda: None
        """Is called before an optimizer steps, and raises StepAbandoned (gate.py)."""
        self.reversal = Reversal(replica, self.moving)
        self.followed: set[str] = set()
        """Schedulers and the like whose calls are noticed."""
        self._communication = Communication(operations)
        self._outside: dict[str, None] = {}
        self._made: list[str] = []
        self._at_work = ""  # the optimizer that is; one that is left there was left in the middle
        self._rehearsal = False
        self._spoilt = False  # an optimizer that is no function of its gradients was at work when this was given up

    # ---- what the script calls --------------------------------------------------------------------------------

    def call_begins(self, name: str, method: str) -> None:
        """A scheduler or the like is called. Raises StepAbandoned in a step that is given up."""
        if self._watching and self._given_up() and not self._optimizers():
            raise StepAbandoned(f"{name}.{method}() belongs to a step that is given up")

    def call_ended(self, name: str, method: str, with_arguments: bool) -> None:
        """It was called."""
        if self._step.state is StepState.LOOP:
            self._outside[f"{name}.{method}() is called"] = None
        self.habits.called.add(name)
        if with_arguments:
            self.habits.with_arguments.add(name)
        if self._watching:
            self._made.append(name)

    def optimizer_begins(self, name: str, given: tuple[Any, ...] = ()) -> None:
        """An optimizer is about to step; `given`: what its step was called with. Raises StepAbandoned, as above."""
        if self._step.state is StepState.BODY and not self._rehearsal and not self._given_up():
            self.come_to_gate()  # where objects are not understood, too: the other ranks wait there
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
        self._communication.optimizer_begins()
        self._step.happens(StepEvent.OPTIMIZER_BEGAN)
        self._at_work = name

    def _keep_before(self, name: str) -> None:
        if self.habits.may_be_undone((*self._made, name), self._replica.optimizers, self.followed):
            self.reversal.copies.keep(name)
        self.moving.optimizer_begins()

    def optimizer_ended(self, name: str) -> None:
        """It has stepped."""
        if self._step.under_way:
            self._step.happens(StepEvent.OPTIMIZER_ENDED)
        if not self._watching:
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
        """Whether a step is under way whose calls count. Once there is something that is not understood, none does."""
        return self._step.under_way and not self._doubts.sentence

    # ---- between steps ----------------------------------------------------------------------------------------

    def pack_habits(self) -> dict[str, Any]:
        """What is known of steps by now, for whoever goes on in this rank's place."""
        return self.habits.pack() | {"usual": self.moving.usual}

    def inherit(self, packed: dict[str, Any]) -> None:
        """Go on with what this rank knew in its life before."""
        self.habits.inherit(packed)
        self.moving.usual |= packed["usual"]

    def loop_begins(self) -> None:
        """What was done since the last step was no part of a loop."""
        self._communication.forget()
        self.moving.look()

    def repaired(self) -> None:
        """A repair communicates, and puts parameters in place."""
        self._communication.forget()
        self.moving.forget()

    def outside(self) -> list[str]:
        """What the body of the loop has done outside of its steps, of which nobody knows how often it has happened."""
        return [*self._outside]

    # ---- a step -----------------------------------------------------------------------------------------------

    def begin(self, rehearsal: bool = False) -> bool:
        """A step begins. Whether something was communicated since the one before, which is said once."""
        between = self._communication.begin()
        self._rehearsal = rehearsal
        if self.moving.begin():
            self._outside["the parameters are changed"] = None
        self._made, self._at_work = [], ""
        self._spoilt = False
        self.reversal.copies.begin()
        return between

    def forward_ended(self) -> None:
        """A backward begins."""
        if self._at_work:
            self.habits.closures.add(self._at_work)

    def may_end_here(self) -> None:
        """The step calls something, no collective, at which it would end if it were given up."""
        self.habits.ends_late |= bool(self._optimizers())

    def commit(self) -> bool:
        """The step ended as it should; its calls are remembered. Whether an optimizer was among them."""
        self.habits.remember(tuple(self._made))
        updated = bool(self._optimizers())
        self.habits.unseen |= self.moving.end()
        self.habits.ends_late |= self._communication.end() and updated
        return updated

    def rehearsed(self) -> None:
        """The rehearsal of a step is over; nothing of it is kept."""
        self._leave()
        self.reversal.take_back(self._optimizers())

    def give_up(self, to_its_end: bool, moved: bool = False) -> Outcome:
        """The step is given up.

        `to_its_end`: the body ran to its end all the same, so nothing is missing of it. `moved`: it has changed what no
        call of those that are followed changes, so nobody knows what is missing.
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
        """The body was left. Whether parameters have moved after an update."""
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
