"""From a fault to the first completed step of all ranks, with its phases; and whether the weights came out identical.

The time runs from the signal to the moment at which the manager has heard of a completed step from every rank, by the
time of day of one machine. One job is disturbed many times, each time only after it trains again; its final weights
are compared with those of a run that nobody disturbed. A node is lost by killing its launcher, once per job.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from taskd.bench.job import Job
from taskd.bench.report import Figure, Goal, median, percentile

SMALL = (256, 4)
LARGE = (2048, 4)
"""4 layers of 2048 x 2048: 67 MB of parameters, 200 MB with the optimizer's state."""
KILLS = 12
NODE_LOSSES = 10
BETWEEN = 15
"""Steps that all ranks take between two faults."""
PHASES = ("detect", "fork", "set-up", "join", "rebuild", "restore", "redo")


@dataclass
class _Runs:
    """What one kind of fault took, each time."""

    seconds: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PHASES})
    identical: list[bool] = field(default_factory=list)


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    small = _kills(SMALL, 4, [[2]])
    kinds = {
        "kill_small": (small, 0.6),
        "kill_200mb": (_kills(LARGE, 4, [[2]]), 1.0),
        "kill_rank0": (_kills(SMALL, 4, [[0]]), 0.6),
        "two_kills": (_kills(SMALL, 4, [[1, 2]]), 0.8),
        "node": (_node_losses(), 3.0),
    }
    figures: dict[str, Figure] = {}
    for name, (runs, goal) in kinds.items():
        figures[f"{name}_p50_s"] = median(runs.seconds, "s", Goal("<=", goal))
        figures[f"{name}_p99_s"] = percentile(runs.seconds, 0.99, "s")
    two, sixteen = _kills(SMALL, 2, [[1]]), _kills(SMALL, 16, [[5]])
    growth = [later / earlier for earlier, later in zip(sorted(two.seconds), sorted(sixteen.seconds), strict=False)]
    figures["growth_2_to_16"] = median(growth, "ratio")
    identical = [same for runs, _ in kinds.values() for same in runs.identical] + two.identical + sixteen.identical
    share = sum(identical) / len(identical) if identical else 0.0
    figures["weights_identical_share"] = Figure(share, "share", Goal("==", 1), [float(same) for same in identical])
    figures |= {f"{name}_ms": median(values, "ms") for name, values in small.phases.items()}
    return figures


def _weights(words: Sequence[object], ranks: int, **more: Any) -> str:
    results = Job(words, ranks=ranks, **more).results()
    return next((one["weights"] for one in results if "weights" in one), "")


def _kills(size: tuple[int, int], ranks: int, victims: list[list[int]]) -> _Runs:
    """One job, disturbed KILLS times; `victims` are killed at once, in turn."""
    steps = (KILLS + 2) * (BETWEEN + 85)
    words = (*size, steps)
    runs = _Runs()
    wanted = _weights(words, ranks)
    job = Job(words, ranks=ranks)
    try:
        past = BETWEEN
        for number in range(KILLS):
            found = job.calm(past, number)
            pids = [found[rank]["pid"] for rank in victims[number % len(victims)]]
            _disturb(job, pids, number, runs)
            past = max(rank["step"] for rank in found.values()) + BETWEEN
        job.calm(past, KILLS)
        results = job.results()
    finally:
        job.close()
    runs.identical.append(bool(wanted) and wanted == next((one["weights"] for one in results if "weights" in one), "?"))
    return runs


def _node_losses() -> _Runs:
    words = (*SMALL, 120)
    runs = _Runs()
    wanted = _weights(words, 4, nodes=2)
    for _ in range(NODE_LOSSES):
        job = Job(words, ranks=4, nodes=2, spares=1)
        try:
            job.calm(BETWEEN, 0)
            _disturb(job, [job.launchers[1].pid], 0, runs)
            results = job.results()
        finally:
            job.close()
        found = next((one["weights"] for one in results if "weights" in one), "?")
        runs.identical.append(bool(wanted) and wanted == found)
    return runs


def _disturb(job: Job, pids: list[int], number: int, runs: _Runs) -> None:
    """Kill, wait until incident `number` is closed, and take its times."""
    begin_ns = time.time_ns()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    while job.running():
        answer = job.ask("incidents")
        incidents = answer["incidents"] if answer else []
        if len(incidents) > number and incidents[number]["closed_wall_ns"] is not None:
            _take(incidents[number], begin_ns, job, runs)
            return
    raise RuntimeError("the job ended with an open incident:\n" + "\n".join(job.lines[-30:]))


def _take(incident: dict[str, Any], begin_ns: int, job: Job, runs: _Runs) -> None:
    runs.seconds.append((incident["closed_wall_ns"] - begin_ns) / 1e9)
    phases = {phase["name"]: float(phase["ms"]) for phase in incident["phases"]}
    opened_ns = incident["opened_wall_ns"]
    # When the newcomer had introduced itself: its process was forked and had begun its set-up.
    later = (event["wall_ns"] for event in job.events() if event["kind"] == "joined" and event["wall_ns"] >= opened_ns)
    joined = next(later, None)
    fork = max(0.0, (joined - opened_ns) / 1e6) if joined else 0.0
    own = {
        "detect": max(0.0, (opened_ns - begin_ns) / 1e6),
        "fork": fork,
        "set-up": max(0.0, phases.get("quiesce", 0.0) + phases.get("set-up", 0.0) - fork),
        "join": phases.get("resume", 0.0),
    }
    for name in PHASES:
        runs.phases[name].append(own.get(name, phases.get(name, 0.0)))
