"""A sign of life that a process gives its parent: the time of its last turn, in memory that both have.

A process that is stopped, or that waits for a lock that nobody lets go of, keeps its connections, and the libraries'
own threads may still answer on them. The number that its own loop writes down can be written by nobody else.
Alone, since parent and child import nothing else of each other. It does not judge: the parent does.
"""

from __future__ import annotations

import os
import time

VARIABLE = "_TASKD_PULSE"
_BYTES = 8


class Pulse:
    """Made by the parent; the child gets `environment` and inherits `fd`."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("taskd-pulse")
        os.ftruncate(self.fd, _BYTES)
        self.environment = {VARIABLE: str(self.fd)}

    def last_ns(self) -> int:
        """When the child last gave a sign, by the clock that all processes share; 0: it has yet to."""
        return int.from_bytes(os.pread(self.fd, _BYTES, 0), "little")

    def close(self) -> None:
        """Nobody looks any more."""
        os.close(self.fd)


class Heart:
    """The child's side. Without a parent that looks, it does nothing."""

    def __init__(self) -> None:
        given = os.environ.pop(VARIABLE, "")
        self._fd = int(given) if given.isdigit() else -1

    def beat(self) -> None:
        """This process goes round its loop."""
        if self._fd < 0:
            return
        try:
            os.pwrite(self._fd, time.monotonic_ns().to_bytes(_BYTES, "little"), 0)
        except OSError:
            self._fd = -1
