"""Which processes a process has started, and which of them listens at a port. Both are read from /proc.

The system keeps the children of each thread apart. A process that ends meanwhile, or that we may not see, is passed
over. It does NOT find processes whose parent has ended, nor sockets of another network namespace.
"""

from __future__ import annotations

import os
from pathlib import Path


def started_by(pid: int, most: int) -> list[int]:
    """The living processes that it has started, and those that they have started in turn; at most so many."""
    found: list[int] = []
    asked = [pid]
    while asked and len(found) < most:
        parent = asked.pop()
        for thread in _threads(parent):
            try:
                children = Path(f"/proc/{parent}/task/{thread}/children").read_text().split()
            except OSError:
                continue
            found += map(int, children)
            asked += map(int, children)
    return found[:most]


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def listening_at(port: int) -> set[str]:
    """The sockets of this host that listen at this port, as /proc/PID/fd names them."""
    found = set[str]()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        try:
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
        except OSError:
            continue  # without IPv6, there is no second table
        found |= {f"socket:[{row[9]}]" for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port}
    return found


def has_one_of(pid: str, sockets: set[str]) -> bool:
    """Whether a process ("self": this one) has one of these sockets open."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for number in numbers:
        try:
            if os.readlink(f"/proc/{pid}/fd/{number}") in sockets:
                return True
        except OSError:
            continue  # closed since it was listed
    return False
