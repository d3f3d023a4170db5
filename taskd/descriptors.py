"""How many files and connections this process may have open. A module of its own for manager and training processes.

The soft limit of many systems (1,024) exists for programs that wait with select(). A process of a large job has more
connections than that, and cannot train without free descriptors. So it is raised as far as the hard limit allows.
"""

from __future__ import annotations

import resource

MOST = 65536
"""The limit for a manager and for a training process: for its script's files, and for one connection per rail to each
other process."""


def allow(wanted: int) -> int:
    """Raise the limit to `wanted` if it is lower. Returns the limit, or `wanted` if the limit is higher."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    return reachable
