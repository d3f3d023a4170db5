"""What it costs to put new inner groups under living guards, and whether anything leaks.

park_ms: from the order to give the step up until no operation touches a tensor, with operations in flight. rebuild: the
time until the slowest rank of a group of 4 or 16 ranks on this machine has its new inner group. leaked_bytes: growth of
memory over a thousand reconfigurations under load, after the first two hundred; also descriptors and threads.
reconfigure_ranks.py measures. It does not measure the rest of a repair; `taskd bench recovery` does.
"""

from __future__ import annotations

from typing import Any

from taskd.bench import bare_ranks
from taskd.bench.report import Figure, Goal, median

MODULE = "taskd.bench.reconfigure_ranks"
FEW, MANY = 4, 16
ROUNDS, WARM_UP = 20, 0
STORM_RANKS, STORM_ROUNDS, STORM_WARM_UP = 2, 1200, 200
PATIENCE_S = 1800.0


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    few = _rounds(FEW)
    many = _rounds(MANY)
    storm = _run(STORM_RANKS, STORM_ROUNDS, STORM_WARM_UP)
    figures = {
        "park_ms": median(few["park_ms"], "ms"),
        f"rebuild_{FEW}_ms": median(few["rebuild_ms"], "ms"),
        f"rebuild_{MANY}_ms": median(many["rebuild_ms"], "ms"),
    }
    for name, unit in (("bytes", "bytes"), ("fds", "1"), ("threads", "1")):
        grown = [rank["after"][name] - rank["before"][name] for rank in storm]
        # Memory that the allocator keeps for later is no leak; a mebibyte in a thousand rounds is one kilobyte each.
        goal = Goal("<=", 1 << 20) if name == "bytes" else Goal("<=", 0)
        figures[f"leaked_{name}"] = Figure(max(grown), unit, goal, tuple(grown))
    return figures


def _run(size: int, rounds: int, warm_up: int) -> list[dict[str, Any]]:
    """Return the results of each rank. One more rank serves their store, and has no results."""
    return bare_ranks.run(MODULE, size + 1, rounds, warm_up, timeout_s=PATIENCE_S)[:size]


def _rounds(size: int) -> dict[str, list[float]]:
    """The times of the slowest rank in every round."""
    said = _run(size, ROUNDS, WARM_UP)
    return {
        name: [max(runs) for runs in zip(*(rank[name] for rank in said), strict=True)]
        for name in ("park_ms", "rebuild_ms")
    }
