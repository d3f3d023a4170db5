"""Where the counters of this process' rails are, and who wants to know it: the link between transports and the worker.

A transport calls `show` with the descriptor of its counters (a memory file, csrc/rail/counters.hpp) once it has made
them. The code that supervises this process calls `watch`. It gets every descriptor, in whichever order the two calls
come. A process may have several transports, each under its own name. The descriptor still belongs to the transport.
This module needs no torch, reads no counters and knows no agent.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

OF_RAILS = "rail"
"""The transport of taskd's own rails."""
Wants = Callable[[str, int], None]
"""A function that takes the transport's name and the descriptor."""

_lock = threading.Lock()
_shown: dict[str, tuple[int, int]] = {}  # by transport: process and descriptor; a forked child shows nothing
_wants: Wants | None = None


def _after_fork() -> None:
    global _lock, _wants
    _lock, _wants = threading.Lock(), None  # a thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)


def show(fd: int, transport: str = OF_RAILS) -> None:
    """Announce the descriptor of this transport's counters, which stays open as long as the transport lives."""
    with _lock:
        _shown[transport] = (os.getpid(), fd)
        wants = _wants
    if wants is not None:
        wants(transport, fd)


def watch(wants: Wants | None) -> None:
    """Call this function with every descriptor, now if there is one and again when another is shown. None: stop
    calling."""
    global _wants
    with _lock:
        _wants = wants
        shown = dict(_shown)
    for transport, (pid, fd) in shown.items():
        if wants is not None and pid == os.getpid():
            wants(transport, fd)
