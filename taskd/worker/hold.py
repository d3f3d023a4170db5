"""Decides how long a failed operation is held for a repair, before its error is raised in the script.

The time counts only while a repair could be decided. It cannot be decided while this node's launcher does not run (it
is stopped, or gets no processor). The launcher has then neither seen the death nor reported it to the manager. Its
socket shows this: the launcher reads nothing from it. So this rank sends a message again and again, and the time begins
anew while a message stays unread. If the launcher has ended its part of the job, as after a signal, it repairs nothing
any more, so nothing is held.

Failure modes: the launcher stops before or after it has heard of the failure; it never comes back (the wait ends after
the longest time that a stage of a repair may last); it is only slow (the time grows by the delay).
This is a module of its own because it knows nothing of groups and orders: failures.py begins a hold, and orders.py ends
it. *Not seen:* a manager that has stopped.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from taskd import log
from taskd.core.limits import LONGEST_STAGE_NS, SECOND

LOOK_SECONDS = 1.0
LONGEST_SECONDS = LONGEST_STAGE_NS / SECOND
_logger = log.get(__name__)


class Hold:
    """Holds one failure at a time, the last one. One thread calls begin() and look(); any thread may call end()."""

    def __init__(self, ask: Callable[[], None]) -> None:
        """`ask` sends a message to the launcher that changes nothing."""
        self.unread: Callable[[], bool] = lambda: False
        """Whether the launcher has not read all messages yet."""
        self.unattended: Callable[[], bool] = lambda: False
        """Whether the launcher has ended its part."""
        self._ask = ask
        self._lock = threading.Lock()
        self._epoch = -1  # the epoch of the failure; -1: nothing is held
        self._seconds = 0.0
        self._until = self._most = 0.0
        self._taken_at = 0.0  # when the launcher was last seen to have read everything
        self._told = False

    def begin(self, epoch: int, seconds: float) -> None:
        """Hold a failure of this epoch; wait at most `seconds` for a repair."""
        now = time.monotonic()
        with self._lock:
            self._epoch, self._seconds = epoch, seconds
            self._until, self._most = now + seconds, now + max(seconds, LONGEST_SECONDS)
            self._taken_at, self._told = now, False

    def end(self) -> int:
        """End the hold. Return the epoch of the failure, or -1 if nothing was held."""
        with self._lock:
            epoch, self._epoch = self._epoch, -1
            return epoch

    def look(self) -> float | None:
        """Return after how many milliseconds to look again; 0: the wait is over; None: nothing is held."""
        taken, unattended = not self.unread(), self.unattended()
        with self._lock:
            if self._epoch < 0:
                return None
            if unattended:
                return 0.0
            now = time.monotonic()
            if not taken:
                self._until = min(now + self._seconds, self._most)
                self._tell(now)
            elif now < self._until:
                self._taken_at = now
            left = max(0.0, self._until - now)
            again = min(left, LOOK_SECONDS, self._seconds / 4)
        if taken and left:
            self._ask()
        return again * 1000

    def _tell(self, now: float) -> None:
        silent = now - self._taken_at
        if silent >= self._seconds and not self._told:
            self._told = True
            _logger.warning(
                "an operation has failed, and the launcher of this node (process %d) has not run for %.0f s: it is "
                "stopped, or gets no processor. This rank waits until it is back, for %.0f s at most",
                os.getppid(),
                silent,
                LONGEST_SECONDS,
            )
