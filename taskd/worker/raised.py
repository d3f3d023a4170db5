"""Errors of the script's own that have left a step: which may be tried again, and which has come once more.

An error is tried again once in each step, and before anything has moved that ranks share (docs/ARCHITECTURE.md, An
error in a step). Failure modes: the script's collectives fail since another rank has (that is no error of the script's,
and is told elsewhere); the error holds what there was no room for. It does NOT lead a repair (heal.py), and it does not
know who answers (orders.py).

What could not be healed in place is not tried again either: all would start over for an error that may be the script's
own way out of its loop. And DistributedDataParallel cannot go on behind a backward that was left in its middle: its
rank is replaced like one that was killed.
"""

from __future__ import annotations

import traceback

from taskd import log
from taskd.core.words import follows
from taskd.worker.exits import first_line
from taskd.worker.heal import Repair
from taskd.worker.naming import told
from taskd.worker.registered import Registered
from taskd.worker.step import Step
from taskd.worker.step_state import StepState

_BACKWARD = "/torch/autograd/"
_logger = log.get(__name__)


class Raised:
    """Of one session."""

    def __init__(self, registered: Registered, repair: Repair) -> None:
        self._registered, self._repair = registered, repair
        self.step: Step | None = None
        """The one that an error has left for good."""
        self._tried = -1
        """The last step that was done again since it had raised."""

    @property
    def came_again(self) -> bool:
        """Whether it has left that step twice."""
        return self.step is not None and self._tried == self.step.number

    def is_tried_again(self, step: Step, state: StepState, error: BaseException) -> bool:
        """Whether all ranks do this step again; asks, and waits for the answer."""
        known = self._registered
        healed = not (known.coverage.flaws or known.doubts.sentence) and state is StepState.BODY
        torn = bool(known.replica.parallel()) and _comes_from_a_backward(error)
        if torn or not healed or self._tried == step.number or follows(first_line(type(error), error)):
            return False
        _logger.warning("step %d was left by %s: all ranks are asked to do it again", step.number, told(error))
        begun = self._repair.appeal(step.number, f"{told(error)} in step {step.number}")
        if begun:
            self._tried = step.number
            traceback.clear_frames(error.__traceback__)  # they may hold more than there is room for
        return begun


def _comes_from_a_backward(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if _BACKWARD in trace.tb_frame.f_code.co_filename:
            return True
        trace = trace.tb_next
    return False
