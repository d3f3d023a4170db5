"""Where the counters of this process' rails lie, and who wants to know: the seam between transports and the worker.

A transport shows the descriptor of its counters (a memory file, csrc/rail/counters.hpp) once it has made them; whoever
supervises this process is told, whichever of the two comes first. A process may have several transports, each under a
name of its own. The descriptor stays the transport's. It needs no torch, reads nothing and knows no agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

OF_RAILS = "rail"
"""The transport of taskd's own rails."""
Wants = Callable[[str, int], None]
"""Of the transport's name and the descriptor."""

_lock = threading.Lock()
_shown: dict[str, tuple[int, int]] = {}  # by transport: process and descriptor, for a forked child shows nothing
_wants: Wants | None = None


def show(fd: int, transport: str = OF_RAILS) -> None:
    """The counters of this transport lie behind this descriptor, which stays open as long as the transport lives."""
    with _lock:
        _shown[transport] = (os.getpid(), fd)
        wants = _wants
    if wants is not None:
        wants(transport, fd)


def watch(wants: Wants | None) -> None:
    """Tell this function every descriptor, now if there is one and again when another is shown; None: nobody any
    more."""
    global _wants
    with _lock:
        _wants = wants
        shown = dict(_shown)
    for transport, (pid, fd) in shown.items():
        if wants is not None and pid == os.getpid():
            wants(transport, fd)
