"""The listener to the functions that patches.py replaces: it tells the current step, or the work between loops.

It is a module of its own because the patches know nothing of steps, and the step knows nothing of the work between
loops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from taskd import log
from taskd.worker.between import Between
from taskd.worker.passage import Passage
from taskd.worker.registered import Registered
from taskd.worker.step_state import StepState
from taskd.worker.transaction import Transaction

ANOTHER_LOSS = (
    "step {number} is done again, and its backward begins with {now:.7g} where it began with {was:.7g} before: either "
    "no repair has put back something that the step uses, or it draws anew each time; TASKD_RECOVER_ANOTHER_LOSS=say "
    "lets such a job go on"
)
LAST_DIGITS = (
    "step %d is done again, and its loss differs in the last digits: what computes it does not give the same bits "
    "twice, so the weights may differ from those of a run without a fault"
)
_logger = log.get(__name__)


class Listener:
    """The listener of one session."""

    def __init__(
        self,
        registered: Registered,
        transaction: Transaction,
        between: Between,
        passage: Passage,
        losses_differ: Callable[[str], None],
    ) -> None:
        """`losses_differ` says so, and makes all ranks start over as a rule."""
        self._registered, self._transaction = registered, transaction
        self._between, self._passage, self._losses_differ = between, passage, losses_differ

    def forward_ended(self) -> None:
        """Called before any gradient leaves this rank."""
        self._transaction.forward_ended()

    def saves(self) -> bool:
        """Whether torch.save() may save; never in a rehearsal. Raises StepAbandoned in a step that is given up."""
        if self._passage.under_way:
            return False
        self._transaction.saves()
        return True

    def data_is_asked_for(self, parameter: torch.Tensor) -> None:
        """Note that the script asks for a parameter's `data`, and may write into it."""
        step = self._transaction.current
        if self._between.under_way:
            self._between.moving.touched(parameter)
        elif step is not None and not step.rehearsal and not self._optimizer_is_at_work():
            moving = self._registered.calls.moving
            self._registered.doubts.look("a parameter whose data is asked for", moving.touched, parameter)

    def backward_begins(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """Note that gradients are about to be computed, and what was `given` for it: the arguments of the call, without
        names and with."""
        transaction = self._transaction
        transaction.variables.leftovers.backward_begins(given)
        step = transaction.current
        if step is None or step.rehearsal or transaction.given_up():
            return
        arguments, named = given
        found = self._registered.local.losses.backward_begins(arguments[0] if arguments else named.get("tensors"))
        if found is not None and found.is_small:
            log.once(_logger, logging.WARNING, f"last digits {step.number}", LAST_DIGITS, step.number)
        elif found is not None:
            self._losses_differ(ANOTHER_LOSS.format(number=step.number, was=found.was, now=found.now))

    def is_put_into(self, parameter: torch.Tensor, value: torch.Tensor) -> None:
        """Note that the script makes this tensor the `data` of a parameter."""
        self._transaction.variables.leftovers.put_into(parameter, value)

    def optimizer_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the step of any optimizer, registered or not, except those that are parts of a registered one."""
        self._transaction.variables.leftovers.update_begins()
        self._transaction.variables.files.judge()
        self._transaction.variables.hooks.judge(is_whole=True)
        if self._between.under_way:
            self._between.refuse_optimizer()
        if self._transaction.current is not None and not self._optimizer_is_at_work():
            self._registered.optimizer_steps(optimizer)

    def _optimizer_is_at_work(self) -> bool:
        return self._transaction.step.state is StepState.UPDATING
