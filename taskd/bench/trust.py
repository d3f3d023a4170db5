"""Whether all ranks hold the same, and what it costs to know: `taskd bench trust`.

Part "proof" trains a job in peace and says what its proofs took of the time of its steps. Part "flips" flips bits in
what one rank holds (a parameter, a moment, a setting), one after another, and says after how many steps each was found
and how often the right rank was named. Part "kills" kills ranks of many small trainings and compares what they end with
(kills.py). How long a repair takes is measured by `taskd bench recovery`.
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
"""What is flipped, in turn. The first few start the job over, the others are said."""
SETTLE_STEPS = 20


def proof() -> dict[str, Figure]:
    """What proofs take of a step, while nothing is wrong."""
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
    """Bits that flip, one after another."""
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
    """The update in `after update 64 rank 2 holds ...`."""
    return int(text.split()[2])


def _called(what: str) -> str:
    """What of this must stand in the sentence."""
    return what.split()[-1]


PARTS = {"proof": proof, "flips": flips, "kills": kills.measure}


def measure(only: Sequence[str] = (), calm_s: float | None = None) -> dict[str, Figure]:
    """The figures of these parts, or of all."""
    return parts.measure(PARTS, only, calm_s or 0.0)
