"""How long an operation that has failed is held for a repair, before its error is raised in the script.

The time counts while somebody could decide upon a repair. Nobody can while this node's launcher does not run (it is
stopped, or gets no processor): it has not seen the death, nor told it to the manager. That shows in its socket, from
which it takes nothing. So this rank asks again and again, and what is not taken makes the time begin anew. A launcher
that has ended its part of the job, as a signal tells it to, repairs nothing any more: then nothing is held.

Failure modes: the launcher stands still before it has heard of the failure, or after that; it never comes back, which
ends the wait after as long as any stage of a repair may last; it is only slow, and the time grows by that.
Alone, since it knows nothing of groups and orders: failures.py holds, and orders.py lets go. *Not seen:* a manager that
stands still.
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
    """One failure is held at a time, the last one. One thread begins and looks; any may end it."""

    def __init__(self, ask: Callable[[], None]) -> None:
        """`ask` says something to the launcher that changes nothing."""
        self.unread: Callable[[], bool] = lambda: False
        """Whether the launcher has yet to take what was said."""
        self.unattended: Callable[[], bool] = lambda: False
        """Whether the launcher has ended its part."""
        self._ask = ask
        self._lock = threading.Lock()
        self._epoch = -1  # in which it failed; -1: nothing is held
        self._seconds = 0.0
        self._until = self._most = 0.0
        self._taken_at = 0.0  # when the launcher was last seen to have taken everything
        self._told = False

    def begin(self, epoch: int, seconds: float) -> None:
        """Something has failed in this epoch; a repair is awaited so long."""
        now = time.monotonic()
        with self._lock:
            self._epoch, self._seconds = epoch, seconds
            self._until, self._most = now + seconds, now + max(seconds, LONGEST_SECONDS)
            self._taken_at, self._told = now, False

    def end(self) -> int:
        """Nothing is held any more; the epoch in which it had failed, or -1 if nothing was held."""
        with self._lock:
            epoch, self._epoch = self._epoch, -1
            return epoch

    def look(self) -> float | None:
        """After how many milliseconds to look again; 0: the wait is over; None: nothing is held."""
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
