"""Errors of the script's own, or of its loader, in a step: which may be tried again, and which has come once more.

An error is tried again once in each step, and before anything has moved that ranks share (docs/ARCHITECTURE.md, An
error in a step). Failure modes: the script's collectives fail since another rank has (that is no error of the script's,
and is told elsewhere); the error holds what there was no room for, and the device's allocator keeps it; the script
means its error, and has said so (`recover.never_retry`). It does NOT lead a repair (heal.py), and it does not know who
answers (orders.py).

What could not be healed in place is not tried again either: all would start over for an error that may be the script's
own way out of its loop. And DistributedDataParallel cannot go on behind a backward that was left in its middle: its
rank is replaced like one that was killed.
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
from taskd.worker.feed import AnotherBatch, Feed
from taskd.worker.heal import Repair
from taskd.worker.naming import told
from taskd.worker.registered import Registered

_BACKWARD = "/torch/autograd/"
_logger = log.get(__name__)


class Raised:
    """Of one session."""

    def __init__(self, registered: Registered, repair: Repair) -> None:
        self._registered, self._repair = registered, repair
        self.left: int | None = None
        """The step that an error has left for good."""
        self._tried = -1
        """The last step that was done again since it had raised."""
        self._tried_by_all = -1
        """The same, on whichever rank it had."""

    @property
    def came_again(self) -> bool:
        """Whether it has left that step twice."""
        return self.left is not None and self._tried == self.left

    def batch(self, feed: Feed, number: int, start: int) -> Any:
        """That of this step, in a loop that began after `start` updates. Raises StepAbandoned if its loader has failed,
        and is asked once more in the repair that has begun."""
        try:
            return feed.batch(number - start)
        except (UsageError, AnotherBatch):
            raise
        except Exception as error:
            if not feed.hides and self.is_tried_again(number, error):
                raise StepAbandoned("the loader is asked once more") from None
            self.left = number
            raise

    def all_try(self, number: int) -> None:
        """All ranks do this step again, since one of them had raised: who raises now does not make it a third time, for
        the others may have left their loop by then."""
        self._tried_by_all = number

    def is_tried_again(self, number: int, error: BaseException) -> bool:
        """Whether all ranks do this step again, of which nothing has moved yet; asks, and waits for the answer."""
        known = self._registered
        torn = bool(known.replica.parallel()) and _comes_from_a_backward(error)
        refused = torn or known.coverage.flaws or known.doubts.sentence or _is_one_of(self._repair.never_retry, error)
        if refused or number in (self._tried, self._tried_by_all) or follows(first_line(type(error), error)):
            return False
        _logger.warning("step %d was left by %s: all ranks are asked to do it again", number, told(error))
        begun = self._repair.appeal(number, f"{told(error)} in step {number}")
        if begun:
            self._tried = number
            traceback.clear_frames(error.__traceback__)  # they may hold more than there is room for
            if isinstance(error, torch.OutOfMemoryError):
                _empty_caches()
        return begun


def _is_one_of(names: tuple[str, ...], error: BaseException) -> bool:
    """By the name of its class, or of one that this is a kind of, with its module or without."""
    kinds = type(error).__mro__
    return any(name in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}") for kind in kinds for name in names)


def _empty_caches() -> None:
    """Of the device's allocator: what it keeps in small pieces is room for a large one."""
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
