"""The socket between a training process and its node's agent: messages out without blocking, messages in as they come.

It comes and goes with the agent. A message that is sent while there is no agent is lost, and the sender is told. Any
thread may send, and a signal handler, too. A forked child inherits none of it: it sends nothing, and reports nothing as
unread. This module does NOT connect (connector.py), and does not know what a message means.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Iterator

from taskd import _native, log
from taskd.core.messages import CountersShown, FromWorker, ToWorker
from taskd.wire import local
from taskd.wire.codec import Envelope, WireError, decode, encode
from taskd.worker.identity import Identity

_logger = log.get(__name__)


class Channel:
    """The channel of one training process."""

    def __init__(self, identity: Identity) -> None:
        self.lock = threading.RLock()  # for the socket and the message numbers; a signal handler may send, too
        self.socket: socket.socket | None = None
        self._identity = identity
        self._pid = os.getpid()
        self._life = secrets.randbits(62)
        self._sequence = 0

    def ours(self) -> bool:
        """Whether this process owns the channel, and is not a forked child."""
        return os.getpid() == self._pid

    def open(self, found: socket.socket) -> None:
        """Use this connection from now on."""
        _native.close_on_fork(found.fileno())
        with self.lock:
            self.socket = found

    def close(self) -> None:
        """Close the connection."""
        with self.lock:
            if self.socket is not None:
                _native.keep_on_fork(self.socket.fileno())
                self.socket.close()
                self.socket = None

    def say(self, message: FromWorker | CountersShown, descriptors: tuple[int, ...] = ()) -> bool:
        """Send one message to the agent without ever blocking; False when it could not be sent now."""
        if not self.ours():
            return False
        with self.lock:
            if self.socket is None:
                return False
            self._sequence += 1
            identity = self._identity
            data = encode(message, Envelope(identity.job, identity.node, self._life, self._sequence))
            try:
                return local.send(self.socket, data, descriptors)
            except OSError:  # the agent is gone; the link's thread notices this and connects again
                return False

    def unread(self) -> bool:
        """Whether the agent has not read all messages yet. An agent that does not run reads nothing."""
        if not self.ours():
            return False
        with self.lock:
            return self.socket is not None and local.unread(self.socket) > 0

    def received(self) -> Iterator[ToWorker]:
        """Yield the messages that have arrived. Raises EOFError or Malformed when the connection ends."""
        assert self.socket is not None
        while (got := local.receive(self.socket)) is not None:
            data, descriptors = got
            local.close_all(descriptors)
            found = decode(data)
            if isinstance(found, WireError):
                log.once(_logger, logging.WARNING, found.kind, "the agent sent something unreadable: %s", found.reason)
            elif isinstance(found[1], ToWorker):
                yield found[1]
