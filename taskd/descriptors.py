"""How many files and connections this process may have open. Alone, since manager and training processes need it.

The soft limit of many systems (1,024) is there for programs that wait with select(). A process of a large job has more
connections than that, and who runs out of descriptors trains no more; so it is raised as far as the hard limit allows.
"""

from __future__ import annotations

import resource

MOST = 65536
"""Wanted of a training process: what its script opens, and a connection for each rail to each other process."""


def allow(wanted: int) -> int:
    """Raise the limit to this if it is lower; what it is then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    reachable = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (reachable, hard))
    return reachable
