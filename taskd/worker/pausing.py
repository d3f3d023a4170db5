"""Where a training process stands for an operator's pause: before its next step, until it may go on.

The training thread asks `before(step)` at each boundary: the session in its loop, or a script without a session through
torch's optimizer hooks or tft_pause_train (hooks.py). The link's thread takes orders. One lock joins the two, so the
answer to the manager and the begin of a step never overlap. core/pause/guard.py decides. Failure modes:

- *The operator or the manager is lost*: the wait ends with the lease, on this process' own clock.
- *A repair begins*: the wait ends, and the session parks the rank. After the repair it stands here again.
- *The link has ended*: nobody could end the pause any more, so this rank does not stand.
- *The script has no boundary* (no session, no optimizer of torch, no tft_pause_train): the answer says so.

A rank says that it stands once its device has done all that was queued. It does NOT wait for other ranks.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from taskd import log
from taskd._native import Page
from taskd.core.messages import PauseAnswer, PauseOrder
from taskd.core.pause.guard import StepGuard
from taskd.core.types import PauseKind, Phase

NO_BOUNDARY = (
    "its script has no taskd.session(), steps no optimizer of torch, and does not call tft_pause_train(): nothing "
    "tells where a step begins"
)
_logger = log.get(__name__)


class Pausing:
    """The pauses of one training process."""

    def __init__(self, rank: int, page: Page, say: Callable[[PauseAnswer], bool]) -> None:
        self._rank, self._page, self._say = rank, page, say
        self._pid = os.getpid()
        self._guard = StepGuard()
        self._changed = threading.Condition()
        self._incarnation = 0

    def ordered(self, order: PauseOrder, incarnation: int) -> None:
        """Take an order of the manager, and answer."""
        with self._changed:
            self._incarnation = incarnation
            self._guard.ordered(time.monotonic_ns(), order)
            self._changed.notify_all()
            self._answer(NO_BOUNDARY if order.kind is not PauseKind.FREE and not _boundaries.known else "")

    def before(self, step: int, given_up: Callable[[], bool]) -> bool:
        """Return when this rank may begin `step`, or when `given_up` says that it does something else. Return whether
        it has stood."""
        if os.getpid() != self._pid:
            return False  # a forked child is no rank, and the lock may have been held when it was forked
        with self._changed:
            if self._may_begin(step):
                return False
        self._page.store_phase(int(Phase.PARKED))
        _synchronise()
        with self._changed:
            try:
                while not given_up() and not self._may_begin(step):
                    if not self._guard.stands:
                        _logger.info("this rank stands before step %d: an operator pauses the job", step)
                    self._guard.stands = True
                    self._tell()
                    self._changed.wait(self._left())
            finally:
                self._guard.leaves()
                self._tell()
        return True

    def set_back(self, updates: int) -> None:
        """Note that a repair has set the training to this number of updates."""
        with self._changed:
            self._guard.set_back(updates)

    def wake(self) -> None:
        """Let a rank that stands look again whether it shall do something else."""
        with self._changed:
            self._changed.notify_all()

    def end(self) -> None:
        """Let this rank go on, whatever was ordered: no order can reach it any more."""
        with self._changed:
            self._guard.free()
            self._changed.notify_all()

    def _may_begin(self, step: int) -> bool:
        free = self._guard.may_begin(time.monotonic_ns(), step)
        if free:
            self._tell()
        return free

    def _left(self) -> float | None:
        until = self._guard.until
        return None if until is None else max(until - time.monotonic_ns(), 0) / 1e9

    def _tell(self) -> None:
        if self._guard.news():
            self._answer("")

    def _answer(self, trouble: str) -> None:
        self._say(self._guard.answer(self._rank, self._incarnation, trouble))


class _Boundaries:
    """What this process knows about the boundaries of its steps."""

    def __init__(self) -> None:
        self.known = False
        self.session = False


_boundaries = _Boundaries()
_current: Pausing | None = None


def establish(found: Pausing | None) -> None:
    """Make this the pauses of this process."""
    global _current
    _current = found


def boundaries_known() -> None:
    """Note that this process asks before its steps."""
    _boundaries.known = True


def session_begins() -> None:
    """Note that the session's loop asks from now on, and no hook."""
    _boundaries.known = _boundaries.session = True


def before(step: int, given_up: Callable[[], bool]) -> bool:
    """See Pausing.before. Only the session calls it."""
    return _current is not None and _current.before(step, given_up)


def before_hooked(step: int) -> bool:
    """The same in a script without a session. There a repair ends this process, so nothing else ends the wait."""
    return _current is not None and not _boundaries.session and _current.before(step, _never)


def set_back(updates: int) -> None:
    """See Pausing.set_back."""
    if _current is not None:
        _current.set_back(updates)


def wake() -> None:
    """See Pausing.wake."""
    if _current is not None:
        _current.wake()


def _never() -> bool:
    return False


def _synchronise() -> None:
    """Wait until the device of this process has done what is queued on it. A process without one returns at once."""
    torch = sys.modules.get("torch")
    for name in ("cuda", "npu", "xpu"):
        device = getattr(torch, name, None)
        begun = getattr(device, "is_initialized", None)
        if device is not None and begun is not None and begun():
            device.synchronize()
