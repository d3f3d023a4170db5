"""Whether this rank is registered: what its node's agent and the manager have said to its introduction, and why not.

The agent accepts it, and the manager acknowledges it, which may come later; both end with the line. Those who start
training wait for the second, and those who ask get the reason as a sentence.
Alone, since the training thread waits for it while the link's thread writes it. It does NOT speak to anybody.
"""

from __future__ import annotations

import logging
import threading

from taskd import log
from taskd.core.messages import WorkerWelcome

AGENT_SILENT = "this node's agent has not answered yet"
_logger = log.get(__name__)


class Registration:
    """Of one rank."""

    def __init__(self, rank: int) -> None:
        self.accepted = False
        self.acknowledged = False
        self.reason = AGENT_SILENT
        """Why it is not acknowledged; empty if it is."""
        self.late = False
        """Somebody has been told that this rank is not registered, so the end of that is news."""
        self._rank = rank
        self._changed = threading.Condition()
        self._over = False

    def wait(self, seconds: float) -> bool:
        """Wait until the manager has acknowledged this rank; False when the time or the line is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.acknowledged or self._over, seconds)
        return self.acknowledged

    def answered(self, message: WorkerWelcome, trouble: str) -> None:
        """The agent has answered. `trouble`: with the key, which would be the better reason."""
        with self._changed:
            was = self.acknowledged
            self.accepted, self.acknowledged = message.accepted, message.accepted and message.acknowledged
            self._changed.notify_all()
        self.explain(message.reason, trouble)
        if self.acknowledged and not was:
            level = logging.WARNING if self.late else logging.INFO
            self.late = False
            _logger.log(level, "rank %d is registered with the manager now", self._rank)

    def lost(self, trouble: str) -> None:
        """The agent is gone."""
        with self._changed:
            self.accepted = self.acknowledged = False
        self.explain(AGENT_SILENT, trouble)

    def explain(self, reason: str, trouble: str) -> None:
        """Why it is not acknowledged, unless it is; the trouble with the key comes first."""
        self.reason = "" if self.acknowledged else trouble or reason or self.reason

    def end(self) -> None:
        """Nobody will answer any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
