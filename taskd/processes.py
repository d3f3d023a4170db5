"""Which processes a process has started. A module of its own for agents and benchmarks.

The system keeps the children of each thread apart, in /proc. A process that ends meanwhile is passed over. It does NOT
find processes whose parent has ended.
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
