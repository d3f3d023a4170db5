"""A sign of life that a process gives its parent: the time of its last turn through its loop, in shared memory.

A process that is stopped, or that waits for ever for a lock, keeps its connections. The threads of libraries may even
answer on them. But only the process' own loop can write this time.
This is a module of its own, because parent and child import nothing else of each other. It does not judge: the parent
does.
"""

from __future__ import annotations

import os
import time

VARIABLE = "_TASKD_PULSE"
_BYTES = 8


class Pulse:
    """The parent's side. The child gets `environment` and inherits `fd`."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("taskd-pulse")
        os.ftruncate(self.fd, _BYTES)
        self.environment = {VARIABLE: str(self.fd)}

    def last_ns(self) -> int:
        """The time of the child's last sign of life, by the clock that all processes share; 0: none yet."""
        return int.from_bytes(os.pread(self.fd, _BYTES, 0), "little")

    def close(self) -> None:
        """Close the descriptor: the parent does not look any more."""
        os.close(self.fd)


class Heart:
    """The child's side. It does nothing if no parent looks."""

    def __init__(self) -> None:
        given = os.environ.pop(VARIABLE, "")
        self._fd = int(given) if given.isdigit() else -1

    def beat(self) -> None:
        """Note the time: this process has gone round its loop."""
        if self._fd < 0:
            return
        try:
            os.pwrite(self._fd, time.monotonic_ns().to_bytes(_BYTES, "little"), 0)
        except OSError:
            self._fd = -1
