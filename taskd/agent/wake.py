"""How another thread, or a signal handler, lets the agent's loop turn at once: a pipe that the loop polls.

Alone, since it outlives nothing: it may be rung while the loop closes it, which is what its lock is for, and a signal
handler may ring it while the same thread holds that. It does NOT say why it was rung.
"""

from __future__ import annotations

import contextlib
import os
import threading

from taskd import _native


class Wake:
    """Poll `fd` for reading, then `hush` it."""

    def __init__(self) -> None:
        self.fd, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._lock = threading.RLock()
        self._closed = False
        for fd in (self.fd, self._write):
            _native.close_on_fork(fd)

    def ring(self) -> None:
        """From any thread; does nothing once it is closed."""
        with self._lock:
            if not self._closed:
                with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
                    os.write(self._write, b"x")

    def hush(self) -> None:
        """The loop has woken."""
        os.read(self.fd, 4096)

    def close(self) -> None:
        """Nobody listens any more."""
        with self._lock:
            self._closed = True
            for fd in (self.fd, self._write):
                _native.keep_on_fork(fd)
                os.close(fd)
