"""What the guard itself costs: an operation and a step over guarded groups against the same inner groups bare.

Two ranks hold both kinds of group over the same transport and take them in turns within one run, so that whatever else
the machine does falls on both. The transport is the one that jobs use here (worker.inner). overhead_ranks.py measures.
It says nothing of launchers, sessions and records; `taskd bench steady` does.
"""

from __future__ import annotations

from taskd.bench import bare_ranks
from taskd.bench.report import Figure, Goal, median

RANKS = 2
TURNS = 9
PATIENCE_S = 600.0


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    # An operation is over for all when it is over for the slowest: rank 0 speaks for both.
    found = bare_ranks.run("taskd.bench.overhead_ranks", RANKS, TURNS, timeout_s=PATIENCE_S)[0]
    guarded, bare = found["guarded"], found["bare"]

    def ratio(name: str) -> Figure:
        runs = [one / other for one, other in zip(guarded[name], bare[name], strict=True)]
        return median(runs, "ratio", Goal("<=", 1.01))

    added = [one - other for one, other in zip(guarded["op_us"], bare["op_us"], strict=True)]
    return {
        "guard_us_per_op": median(added, "us", Goal("<", 5)),
        "ddp_ratio": ratio("ddp_ms"),
        "fsdp_ratio": ratio("fsdp_ms"),
        "bare_us_per_op": median(bare["op_us"], "us"),
        "bare_ddp_ms": median(bare["ddp_ms"], "ms"),
        "bare_fsdp_ms": median(bare["fsdp_ms"], "ms"),
    }
