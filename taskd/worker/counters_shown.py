"""The rail counters of this process, in shared memory, as they are shown to the node's agent.

Each transport has its counters, known by a descriptor. The agent gets the descriptor once it has accepted this rank,
again after every lost connection, and when a transport has new counters. This module keeps copies of the descriptors,
so that a transport may close its own.
This is a module of its own because transports call it from any thread (comm/counters.py). It does NOT read the counts.
"""

from __future__ import annotations

import os

from taskd import _native, log
from taskd.core.messages import CountersShown
from taskd.worker.channel import Channel
from taskd.worker.introduction import Introduction
from taskd.worker.registration import Registration

_logger = log.get(__name__)


class ShownCounters:
    """The counters of all transports of one process."""

    def __init__(self, channel: Channel, introduction: Introduction, registration: Registration) -> None:
        self._channel = channel
        self._introduction = introduction
        self._registration = registration
        self._descriptors: dict[str, int] = {}  # by transport
        self._closed = False

    def show(self, transport: str, fd: int) -> None:
        """Hand the rail counters of this transport to the agent, now and each time it accepts this rank again."""
        if not self._channel.ours():
            return
        with self._channel.lock:
            self._drop(transport)
            if self._closed:
                return
            try:
                self._descriptors[transport] = os.dup(fd)
            except OSError as error:
                _logger.warning("the rails of this process cannot be counted: %s", error)
                return
            _native.close_on_fork(self._descriptors[transport])
            self.tell()

    def tell(self) -> None:
        """Send all counters, if the agent has accepted this rank."""
        rank, incarnation = self._introduction.identity.rank, self._introduction.incarnation
        with self._channel.lock:
            for transport, fd in self._descriptors.items() if self._registration.accepted else ():
                self._channel.say(CountersShown(rank, incarnation, transport), (fd,))

    def close(self) -> None:
        """Stop showing counters."""
        with self._channel.lock:
            self._closed = True
            for transport in list(self._descriptors):
                self._drop(transport)

    def _drop(self, transport: str) -> None:
        fd = self._descriptors.pop(transport, -1)
        if fd >= 0:
            _native.keep_on_fork(fd)
            os.close(fd)
