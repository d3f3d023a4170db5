"""Wakes the agent's loop from another thread or from a signal handler, by a pipe that the loop polls.

The pipe may be written while the loop closes it, so it has a lock. The lock is reentrant, because a signal handler may
run while the same thread holds it. It does NOT say why the loop was woken.
"""

from __future__ import annotations

import contextlib
import os
import threading

from taskd import _native


class Wake:
    """A pipe that wakes the loop. Poll `fd` for reading, then call `hush`."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._lock = threading.RLock()
        self._closed = False
        for fd in (self.fd, self._write):
            _native.close_on_fork(fd)

    def ring(self) -> None:
        """Wake the loop, from any thread; does nothing after `close`."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
                    os.write(self._write, b"x")

    def hush(self) -> None:
        """Empty the pipe, after the loop has woken."""
        os.read(self.fd, 4096)

    def close(self) -> None:
        """Close the pipe; `ring` does nothing from now on."""
        with self._lock:
            self._closed = True
            for fd in (self.fd, self._write):
                _native.keep_on_fork(fd)
                os.close(fd)
