"""What the guard itself costs: an operation and a step over guarded groups, compared with the same bare inner groups.

Two ranks have both kinds of group over the same transport and use them in turns within one run. So other work of the
machine affects both. The transport is the one that jobs use here (worker.inner). overhead_ranks.py measures. The
figures do not include launchers, sessions and records; those of `taskd bench steady` do.
"""

from __future__ import annotations

from taskd.bench import bare_ranks
from taskd.bench.report import Figure, Goal, median

RANKS = 2
TURNS = 9
PATIENCE_S = 600.0


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    # An operation ends for all ranks when it ends for the slowest, so the times of rank 0 are enough.
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
