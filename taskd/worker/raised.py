"""Errors that the script or its loader raises in a step: which may be tried again, and which came a second time.

A step is tried again once after an error, and only before shared state has changed (docs/architecture/repair.md, An
error in a step). Failure modes: the script's collectives fail because another rank has failed (this is not the script's
own error, and is reported elsewhere); memory ran out, but the error still holds tensors, and the device's allocator
caches their memory; the script raises the error on purpose, and has said so (`recover.never_retry`). It does NOT lead a
repair (heal.py), and it does not know who answers (orders.py).

If a death could not be healed in place, no error is tried again either. All ranks would start over, though the error
may be the script's own way out of its loop. DistributedDataParallel cannot go on after a backward that was interrupted.
Its rank is replaced like a killed one.
"""

from __future__ import annotations

import gc
import traceback
from typing import Any

import torch

from taskd import log
from taskd.core.words import follows
from taskd.errors import StepAbandoned, UsageError
from taskd.worker.exits import first_line
from taskd.worker.feed import AnotherBatch, Feed, LoaderEnded
from taskd.worker.heal import Repair
from taskd.worker.naming import told
from taskd.worker.registered import Registered

_BACKWARD = "/torch/autograd/"
_logger = log.get(__name__)


class Raised:
    """The errors of one session."""

    def __init__(self, registered: Registered, repair: Repair) -> None:
        self._registered, self._repair = registered, repair
        self.left: int | None = None
        """The step that an error has left for good."""
        self.tried = -1
        """The last step that was done again because it had raised on this rank."""
        self._tried_by_all = -1
        """The last step that was done again because it had raised on any rank."""

    @property
    def came_again(self) -> bool:
        """Whether an error has left that step twice."""
        return self.left is not None and self.tried == self.left

    def batch(self, feed: Feed, number: int, start: int) -> Any:
        """Return the batch of this step, in a loop that began after `start` updates. Raises StepAbandoned if the loader
        has failed and a repair has begun, after which the loader is asked once more."""
        try:
            return feed.batch(number - start)
        except (UsageError, AnotherBatch, LoaderEnded):
            raise
        except Exception as error:
            if not feed.hides and self.is_tried_again(number, error):
                raise StepAbandoned("the loader is asked once more") from None
            self.left = number
            raise

    def is_torn(self, error: BaseException) -> bool:
        """Whether the error has left a backward, after which DistributedDataParallel cannot go on."""
        return bool(self._registered.replica.parallel()) and _comes_from_a_backward(error)

    def all_try(self, number: int) -> None:
        """Note that all ranks do this step again because one rank had raised. A rank that raises in this second attempt
        does not cause a third one, because the others may have left their loop by then."""
        self._tried_by_all = number

    def is_tried_again(self, number: int, error: BaseException) -> bool:
        """Ask the manager, and wait, whether all ranks do this step again. The step has changed nothing yet."""
        known = self._registered
        refused = self.is_torn(error) or _is_one_of(self._repair.never_retry, error)
        refused = refused or bool(known.coverage.flaws or known.doubts.sentence)
        refused = refused or self._has_lost()
        if refused or number in (self.tried, self._tried_by_all) or follows(first_line(type(error), error)):
            return False
        _logger.warning("step %d was left by %s: all ranks are asked to do it again", number, told(error))
        begun = self._repair.appeal(number, f"{told(error)} in step {number}")
        if begun:
            self.tried = number
            traceback.clear_frames(error.__traceback__)  # the frames may hold large tensors
            if isinstance(error, torch.OutOfMemoryError):
                _empty_caches()
        return begun

    def _has_lost(self) -> bool:
        """Whether the step has changed something that no repair puts back: then all would start over."""
        variables, doubts = self._registered.local.variables, self._registered.doubts
        return bool(
            variables.looks and doubts.look("what a step has changed", variables.others.has_lost, variables.looks[-1])
        )


def _is_one_of(names: tuple[str, ...], error: BaseException) -> bool:
    """Whether a name is that of the error's class or of a base class, with or without the module."""
    kinds = type(error).__mro__
    return any(name in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}") for kind in kinds for name in names)


def _empty_caches() -> None:
    """Empty the caches of the device's allocator: its small cached blocks can make room for a large one."""
    gc.collect()
    device = torch.accelerator.current_accelerator(check_available=True)
    if device is not None:
        torch.get_device_module(device).empty_cache()


def _comes_from_a_backward(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None:
        if _BACKWARD in trace.tb_frame.f_code.co_filename:
            return True
        trace = trace.tb_next
    return False
