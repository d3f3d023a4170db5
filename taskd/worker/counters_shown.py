"""What the rails of this process count, in shared memory, as it is shown to the node's agent.

Each transport has its counters, known by a descriptor. The agent is handed it once it has accepted this rank, again
after every break of the line, and when a transport has new ones. The descriptors are copies of our own, so that a
transport may close its.
Alone, since the transports speak from any thread (comm/counters.py). It does NOT read what is counted.
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
    """Of all transports of one process."""

    def __init__(self, channel: Channel, introduction: Introduction, registration: Registration) -> None:
        self._channel = channel
        self._introduction = introduction
        self._registration = registration
        self._descriptors: dict[str, int] = {}  # by transport
        self._closed = False

    def show(self, transport: str, fd: int) -> None:
        """Hand what the rails of this transport count to the agent, now and whenever it welcomes us anew."""
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
        """Hand in all of them, if the agent has accepted this rank."""
        rank, incarnation = self._introduction.identity.rank, self._introduction.incarnation
        with self._channel.lock:
            for transport, fd in self._descriptors.items() if self._registration.accepted else ():
                self._channel.say(CountersShown(rank, incarnation, transport), (fd,))

    def close(self) -> None:
        """Show nothing any more."""
        with self._channel.lock:
            self._closed = True
            for transport in list(self._descriptors):
                self._drop(transport)

    def _drop(self, transport: str) -> None:
        fd = self._descriptors.pop(transport, -1)
        if fd >= 0:
            _native.keep_on_fork(fd)
            os.close(fd)
