"""Where the counters of this process' rails lie, and who wants to know: the seam between a transport and the worker.

A transport shows the descriptor of its counters (a memory file, csrc/rail/counters.hpp) once it has made them; whoever
supervises this process is told, whichever of the two comes first. The descriptor stays the transport's.
It needs no torch, reads nothing and knows no agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

_lock = threading.Lock()
_shown: tuple[int, int] | None = None  # process and descriptor: a forked child shows nothing
_wants: Callable[[int], None] | None = None


def show(fd: int) -> None:
    """The counters of this process lie behind this descriptor, which stays open as long as the transport lives."""
    global _shown
    with _lock:
        _shown = (os.getpid(), fd)
        wants = _wants
    if wants is not None:
        wants(fd)


def watch(wants: Callable[[int], None] | None) -> None:
    """Tell this function the descriptor, now if there is one and again when another is shown; None: nobody any more."""
    global _wants
    with _lock:
        _wants = wants
        shown = _shown
    if wants is not None and shown is not None and shown[0] == os.getpid():
        wants(shown[1])
