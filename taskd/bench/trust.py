"""Whether all ranks hold the same values, and what it costs to know: `taskd bench trust`.

Part "proof" trains a job without faults and measures the share of its proofs in the time of its steps. Part "flips"
flips single bits in the state of one rank (a parameter, a moment, a setting). It measures after how many steps each
flip is found, and how often the right rank is named. Part "kills" kills ranks of many small trainings and compares
their final weights (kills.py). `taskd bench recovery` measures how long a repair takes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from taskd.bench import kills, parts
from taskd.bench.job import Broken, Job
from taskd.bench.report import Figure, Goal, median, unmeasured

RANKS = 4
WORDS = (512, 4, 1_000_000)
SMALL = (256, 4, 1_000_000)
CALM_STEPS = 600
FLIPS = ("0.weight", "2.bias", "exp_avg 4.weight", "exp_avg_sq 0.weight", "lr", "6.weight")
"""What is flipped, in turn. The first few make the job start over, the others are only reported."""
SETTLE_STEPS = 20


def proof() -> dict[str, Figure]:
    """Measure the share of proofs in a step's time, while nothing is wrong."""
    with Job(WORDS, ranks=RANKS) as job:
        ranks = job.settle(CALM_STEPS)
        facts = (job.ask("status") or {})["proof"]
        job.finish()
        found = job.results()
    costs = [100 * one["proof_ns"] / one["steps_ns"] for one in found]
    if not costs or facts["updates"] < 0:
        return {"proof_cost_percent": unmeasured("%", f"{len(ranks)} ranks made no proof", Goal("<", 0.1))}
    return {
        "proof_cost_percent": Figure(max(costs), "%", Goal("<", 0.1), tuple(costs)),
        "proof_whole_ms": median([one["whole_ns"] / 1e6 for one in found], "ms"),
        "proof_whole_every_steps": Figure(facts["whole_every"], "steps"),
        "false_alarms": Figure(facts["differences"], "differences", Goal("==", 0)),
    }


def flips() -> dict[str, Figure]:
    """Flip bits, one after another, and measure how they are found."""
    steps: list[float] = []
    named = 0
    for number, what in enumerate(FLIPS):
        with Job(SMALL, ranks=RANKS, kind="flips") as job:
            job.settle(SETTLE_STEPS)
            rank = number % RANKS
            begin_ns = time.time_ns()
            job.tell("flip", json.dumps({"rank": rank, "what": what}))
            try:
                found = job.event("proof", begin_ns, words="after update")
            except Broken:
                continue
            steps.append(float(_after(found["text"]) - int(job.told("flipped"))))
            named += f" rank {rank} holds other contents of" in found["text"] and _called(what) in found["text"]
    return {
        "flips": Figure(len(FLIPS), "flips"),
        "flips_found": Figure(len(steps), "flips", Goal("==", len(FLIPS))),
        "flip_found_steps": median(steps, "steps"),
        "flip_named_share": Figure(named / len(FLIPS), "ratio", Goal("==", 1)),
    }


def _after(text: str) -> int:
    """The number of the update in `after update 64 rank 2 holds ...`."""
    return int(text.split()[2])


def _called(what: str) -> str:
    """The part of this name that the sentence must contain."""
    return what.split()[-1]


PARTS = {"proof": proof, "flips": flips, "kills": kills.measure}


def measure(only: Sequence[str] = (), calm_s: float | None = None) -> dict[str, Figure]:
    """The figures of these parts, or of all."""
    return parts.measure(PARTS, only, calm_s or 0.0)
