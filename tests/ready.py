"""Waits until something can be read. It uses poll: select refuses descriptors from 1024 on; a test may have more."""

from __future__ import annotations

import select
from collections.abc import Iterable
from typing import Any


def readable(sources: Iterable[Any], seconds: float | None = None) -> list[Any]:
    """Return the sources (descriptors or objects with one) that can be read or have ended; empty when time is up."""
    by_fd = {one if isinstance(one, int) else one.fileno(): one for one in sources}
    poller = select.poll()
    for fd in by_fd:
        poller.register(fd, select.POLLIN)
    return [by_fd[fd] for fd, _ in poller.poll(None if seconds is None else max(0.0, seconds) * 1000)]
