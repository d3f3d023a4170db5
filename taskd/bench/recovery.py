"""The time from a fault to the first completed step of all ranks, with its phases; whether the weights are identical.

The time runs from the signal until the manager has heard of a completed step from every rank, by the time of day of one
machine. One job gets many faults, each one as soon as all its ranks train again. Then it is told its last step, and its
weights are compared with those of an undisturbed run to the same step. A node is lost when its launcher is killed;
another launcher then comes as the next spare. A signal tells a rank to raise, and the rank raises in its next step. So
this time includes the rest of a step.

Each kind of fault has its own time limit. The results up to then count, and are printed on standard error as they come.
Nothing is injected into the product.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskd.bench.job import Broken, Event, Job
from taskd.bench.report import Figure, Goal, median, percentile

SMALL = (256, 4, 6000)
LARGE = (2048, 4, 2000)
"""4 layers of 2048 x 2048: 67 MB of parameters, 200 MB with the optimizer's state."""
FAULTS = 10
BETWEEN = 2
"""The least number of steps that all ranks make between two faults."""
KIND_S = 150.0
"""After this time a kind of fault is not tried again."""
PHASES = ("detect", "fork", "set-up", "join", "rebuild", "restore", "redo")


@dataclass
class _Runs:
    """The times that each fault of one kind took."""

    seconds: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=lambda: {name: [] for name in PHASES})
    identical: bool = False
    reason: str = ""

    def figures(self, name: str, goal: float) -> dict[str, Figure]:
        """The reported figures."""
        found = {
            f"{name}_p50_s": median(self.seconds, "s", Goal("<=", goal)),
            f"{name}_p99_s": percentile(self.seconds, 0.99, "s"),
        }
        if self.reason:
            found = {key: Figure(one.value, one.unit, one.goal, one.runs, self.reason) for key, one in found.items()}
        return found


@dataclass(frozen=True)
class _Kind:
    """One kind of fault: the job, and the ranks that are killed at once or raise. No ranks: a launcher is killed."""

    name: str
    goal: float
    words: tuple[int, int, int]
    ranks: int
    victims: tuple[int, ...]
    training: str = "ddp"


KINDS = (
    _Kind("kill_small", 0.6, SMALL, 4, (2,)),
    _Kind("kill_200mb", 1.0, LARGE, 4, (2,)),
    _Kind("kill_rank0", 0.6, SMALL, 4, (0,)),
    _Kind("two_kills", 0.8, SMALL, 4, (1, 2)),
    _Kind("node", 3.0, SMALL, 4, ()),
    _Kind("exception", 0.1, SMALL, 4, (2,), "raises"),
)
TWO = _Kind("2 ranks", 0.0, SMALL, 2, (1,))
SIXTEEN = _Kind("16 ranks", 0.0, SMALL, 16, (5,))


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    figures: dict[str, Figure] = {}
    found = {kind.name: _measured(kind) for kind in (*KINDS, TWO, SIXTEEN)}
    for kind in KINDS:
        figures |= found[kind.name].figures(kind.name, kind.goal)
    fewer, more = sorted(found[TWO.name].seconds), sorted(found[SIXTEEN.name].seconds)
    figures["growth_2_to_16"] = median([late / soon for soon, late in zip(fewer, more, strict=False)], "ratio")
    identical = [float(runs.identical) for runs in found.values()]
    figures["weights_identical_share"] = Figure(
        sum(identical) / len(identical), "share", Goal("==", 1), identical, " ".join(filter(None, _reasons(found)))
    )
    figures |= {f"{name}_ms": median(values, "ms") for name, values in found["kill_small"].phases.items()}
    return figures


def _reasons(found: dict[str, _Runs]) -> list[str]:
    return [f"{name}: {runs.reason}" if runs.reason else "" for name, runs in found.items()]


def _measured(kind: _Kind) -> _Runs:
    """Measure all faults of one kind. An error becomes a reason in the results, because other kinds follow."""
    runs = _Runs()
    begin = time.monotonic()
    try:
        last, weights = _disturbed(kind, runs, begin + KIND_S)
        with Job(kind.words, ranks=kind.ranks, nodes=1 if kind.victims else 2, last_step=last) as job:
            wanted = weights_of(job)
        runs.identical = bool(wanted) and weights == wanted
    except Broken as error:
        runs.reason = str(error)
    _say(f"{kind.name}: {len(runs.seconds)} faults, identical: {runs.identical}, {time.monotonic() - begin:.0f} s")
    return runs


def _disturbed(kind: _Kind, runs: _Runs, ends: float) -> tuple[int, str]:
    """Disturb one job; return its last step and its weights."""
    alone = bool(kind.victims)
    number = signal.SIGUSR1 if kind.training == "raises" else signal.SIGKILL
    spares = 0 if alone else 1
    with Job(kind.words, ranks=kind.ranks, nodes=1 if alone else 2, spares=spares, kind=kind.training) as job:
        fault: Callable[[Job], int] = (lambda job: tell(job, kind.victims, number)) if alone else _lose_node
        while len(runs.seconds) < FAULTS and time.monotonic() < ends:
            begin_ns = fault(job)
            seconds, phases = healed(job, begin_ns)
            runs.seconds.append(seconds)
            for name in PHASES:
                runs.phases[name].append(phases[name])
            _say(f"{kind.name}: {seconds:.3f} s ({', '.join(f'{name} {phases[name]:.0f}' for name in PHASES)} ms)")
        last = job.finish()
        return last, weights_of(job)


def tell(job: Job, ranks: tuple[int, ...], number: int) -> int:
    """Send these ranks this signal as soon as the job trains; return the time."""
    found = job.settle(BETWEEN)
    pids = [found[rank]["pid"] for rank in ranks]
    begin_ns = time.time_ns()
    for pid in pids:
        os.kill(pid, number)
    return begin_ns


def _lose_node(job: Job) -> int:
    """Kill the launcher of the last ranks, once there is a spare; return the time."""
    while len([one for one in job.launchers if one.poll() is None]) < 3:
        job.launch(1)
    found = job.settle(BETWEEN, nodes=3)
    launcher = job.nodes[found[max(found)]["node"]]["pid"]
    begin_ns = time.time_ns()
    os.kill(launcher, signal.SIGKILL)
    return begin_ns


def healed(job: Job, begin_ns: int) -> tuple[float, dict[str, float]]:
    """Wait until no incident is open; return the seconds that this took, and the milliseconds of each phase."""
    since_ns = begin_ns
    while True:
        since_ns = job.event("closed", since_ns)["wall_ns"] + 1
        answer = job.ask("incidents")
        incidents = [one for one in answer["incidents"] if one["opened_wall_ns"] >= begin_ns] if answer else []
        if incidents and all(one["closed_wall_ns"] is not None for one in incidents):
            break
    closed_ns = max(one["closed_wall_ns"] for one in incidents)
    return (closed_ns - begin_ns) / 1e9, _phases(incidents, begin_ns, job.since(begin_ns))


def _phases(incidents: list[dict[str, Any]], begin_ns: int, events: list[Event]) -> dict[str, float]:
    found: dict[str, float] = {}
    for incident in incidents:
        for phase in incident["phases"]:
            found[phase["name"]] = found.get(phase["name"], 0.0) + float(phase["ms"])
    opened_ns = min(incident["opened_wall_ns"] for incident in incidents)
    # The last newcomer has introduced itself at this time: its process was forked and had begun its set-up.
    joined = max((event["wall_ns"] for event in events if event["kind"] == "joined"), default=opened_ns)
    fork = max(0.0, (joined - opened_ns) / 1e6)
    return {
        "detect": max(0.0, (opened_ns - begin_ns) / 1e6),
        "fork": fork,
        "set-up": max(0.0, found.get("quiesce", 0.0) + found.get("set-up", 0.0) - fork),
        "join": found.get("resume", 0.0),
        **{name: found.get(name, 0.0) for name in ("rebuild", "restore", "redo")},
    }


def weights_of(job: Job) -> str:
    """Wait for the end of the job; return the hash of its weights, empty if no rank has printed one."""
    return next((one["weights"] for one in job.results() if "weights" in one), "")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
