"""What taskd costs without faults: the step time of a guarded job, divided by that of plain torchrun with gloo.

Both sides run the same training in turns, several times, on the same machine. Each run gives the median of its step
times, and the ratio is computed within each turn. It does not measure faults.
"""

from __future__ import annotations

import statistics

from taskd.bench.job import Job
from taskd.bench.report import Figure, Goal, median

TURNS = 7
WORDS = (512, 4, 150)
RANKS = 4


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    ratios, plain, guarded = [], [], []
    for _ in range(TURNS):
        plain.append(_step_ms(("torch.distributed.run",)))
        guarded.append(_step_ms(("taskd.run",)))
        ratios.append(guarded[-1] / plain[-1])
    return {
        "ddp_ratio": median(ratios, "ratio", Goal("<=", 1.01)),
        "ddp_plain_ms": median(plain, "ms"),
        "ddp_guarded_ms": median(guarded, "ms"),
    }


def _step_ms(launcher: tuple[str, ...]) -> float:
    with Job(WORDS, ranks=RANKS, launcher=launcher) as job:
        return statistics.median(one["step_ms"] for one in job.results())
