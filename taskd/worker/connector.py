"""The connector from a training process to its node's agent: connect, start an agent if there is none, or retry later.

Each failed attempt delays the next one further, until an agent has answered. An agent that ends right after its start
must not be started in a tight loop. If taskd's launcher is the agent, no agent is started from here.
It does NOT send anything over the connection (channel.py).
"""

from __future__ import annotations

import logging
import socket
import time

from taskd import _native, log
from taskd.config import Config
from taskd.errors import BackendError
from taskd.wire import local
from taskd.worker.activation import start_agent
from taskd.worker.identity import Identity

RETRY_MS = 50
RETRY_MAX_MS = 2_000
_logger = log.get(__name__)


class Connector:
    """The connector of one training process."""

    def __init__(self, config: Config, identity: Identity, launched: bool) -> None:
        """`launched`: the agent is the launcher."""
        self._config = config
        self._identity = identity
        self._launched = launched
        self._retry_ms = RETRY_MS
        self.due_at = 0.0
        """When to connect the next time."""
        self.trouble = ""
        """Why the last attempt has failed, if that is known."""
        self.unattended = False
        """Whether the launcher, which is this node's agent, has stopped listening: no report reaches it any more."""

    def connect(self) -> socket.socket | None:
        """Connect to the agent; start one if there is none."""
        name = local.address(self._identity.job, self._identity.node)
        self.trouble = ""
        try:
            found = local.connect(name)
            if found is None and not self._launched:
                self._start(name)
                found = local.connect(name)
        except (BackendError, OSError) as error:
            self.trouble = str(error)
            log.once(_logger, logging.WARNING, "agent-start", "%s; taskd keeps trying and training goes on", error)
            found = None
        self.unattended = found is None and self._launched and local.nobody_listens(name)
        if found is None:
            self.pause()
        return found

    def pause(self) -> None:
        """Delay the next attempt a little, and the one after it longer, because there is no connection."""
        self.due_at = time.monotonic() + self._retry_ms / 1000
        self._retry_ms = min(2 * self._retry_ms, RETRY_MAX_MS)

    def arrived(self) -> None:
        """Note that an agent has answered."""
        self._retry_ms = RETRY_MS

    def _start(self, name: str) -> None:
        listener = local.listen(name)
        if listener is None:
            return  # another process of this node starts one
        with listener:
            _native.close_on_fork(listener.fileno())
            try:
                start_agent(listener, self._config, self._identity)
            finally:
                _native.keep_on_fork(listener.fileno())
