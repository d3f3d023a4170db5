"""The registration of this rank: what its node's agent and the manager have answered to its introduction.

The agent accepts the rank, and the manager acknowledges it, perhaps later. Both end when the connection is lost. The
start of training waits for the manager's acknowledgement. If the rank is not registered, the reason is kept as a
sentence. This is a module of its own because the training thread waits for it while the link's thread writes it. It
does NOT send anything.
"""

from __future__ import annotations

import logging
import threading

from taskd import log
from taskd.core.messages import WorkerWelcome

AGENT_SILENT = "this node's agent has not answered yet"
_logger = log.get(__name__)


class Registration:
    """The registration of one rank."""

    def __init__(self, rank: int) -> None:
        self.accepted = False
        self.acknowledged = False
        self.reason = AGENT_SILENT
        """Why the rank is not acknowledged; empty if it is."""
        self.late = False
        """Whether it was reported that this rank is not registered, so its registration is worth a warning."""
        self._rank = rank
        self._changed = threading.Condition()
        self._over = False

    def wait(self, seconds: float) -> bool:
        """Wait until the manager has acknowledged this rank; False when the time or the link is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.acknowledged or self._over, seconds)
        return self.acknowledged

    def answered(self, message: WorkerWelcome, trouble: str) -> None:
        """Note the agent's answer. `trouble`: a problem with the key, which would be the better reason."""
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
        """Note that the agent is gone."""
        with self._changed:
            self.accepted = self.acknowledged = False
        self.explain(AGENT_SILENT, trouble)

    def explain(self, reason: str, trouble: str) -> None:
        """Set the reason why this rank is not acknowledged, unless it is. A problem with the key comes first."""
        self.reason = "" if self.acknowledged else trouble or reason or self.reason

    def end(self) -> None:
        """Note that no answer will come any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
