"""How soon a hang of a job is reported, and whether the right rank is named: `taskd bench hang`.

Part "ways": in each run a rank of a new job hangs in one way, or two ranks wait for each other. The rank notes the time
just before it hangs. The measured time runs from there to the manager's event, both by the time of day of one machine.
A run is right if the event names that rank, or names no rank where no rank is to blame. Part "replaced": again and
again a rank of a job is stopped and then replaced. Part "calm": a job trains with pauses of all kinds beside work that
keeps the cores busy, and no hang may be reported. Nothing is injected into the product.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from taskd.bench import parts
from taskd.bench.job import Broken, Job
from taskd.bench.report import Figure, Goal, median

RUNS = 10
RANKS = 3
CULPRIT = 1
WORDS = (256, 4, 30_000)
LONG = (64, 2, 1_000_000)
"""For a job that must train as long as it is watched. Its list of samples costs each newcomer a second."""
SETTLE_STEPS = 100
AHEAD_S = 5.0
"""The ranks are told the step in which they hang this long before it."""
WAYS = ("stop", "gil_spin", "c_hang", "io_hang", "collective_hang", "order_hang")
GOAL_S = 1.0
ALARM_SECONDS = 1200.0
_BUSY = "while True: pass"
_WARN = ("taskd.run", "--max-restarts", "1000", "--hang", "warn")


def ways() -> dict[str, Figure]:
    """Measure each way to hang, in jobs of its own."""
    figures: dict[str, Figure] = {}
    right = runs = 0
    for way in WAYS:
        seconds = []
        for _ in range(RUNS):
            runs += 1
            try:
                took, named = _stood(way)
            except Broken as error:
                print(f"{way}: {error}", file=sys.stderr, flush=True)
                continue
            seconds.append(took)
            right += named
            print(f"{way}: {took:.2f} s, {'right' if named else 'wrong'}", file=sys.stderr, flush=True)
        figures[f"{way}_s"] = median(seconds, "s", Goal("<", GOAL_S))
    return figures | {"culprit_correct": Figure(right / runs, "share", Goal("==", 1), (float(runs),))}


def _stood(way: str) -> tuple[float, bool]:
    """Run one job; return after how long its hang was reported, and whether the right ranks were named."""
    with Job(WORDS, ranks=RANKS, kind="stands", launcher=_WARN) as job:
        ranks = job.settle(SETTLE_STEPS)
        begin_ns = time.time_ns()
        step_s = max(ranks[0]["step_ms"], 1) / 1e3
        job.tell("stand", f"{max(one['step'] for one in ranks.values()) + int(AHEAD_S / step_s)} {way}")
        event = job.event("hang", begin_ns, words="no progress for")
        stood_ns = int(job.told(f"stood.{CULPRIT}"))
        facts = (job.ask("status") or {})["hang"] or {"ranks": None}
        wanted = [] if way == "order_hang" else [CULPRIT]
        named = facts["ranks"] == wanted and (bool(wanted) or "wait for each other" in event["text"])
        return (event["wall_ns"] - stood_ns) / 1e9, named


def replaced() -> dict[str, Figure]:
    """Measure how a stopped rank is named, given up and replaced."""
    said: list[float] = []
    ended: list[float] = []
    healed: list[float] = []
    with Job(WORDS, ranks=RANKS) as job:
        for _ in range(RUNS):
            pid = job.settle(SETTLE_STEPS)[CULPRIT]["pid"]
            begin_ns = time.time_ns()
            os.kill(pid, signal.SIGSTOP)
            hang = job.event("hang", begin_ns, words="no progress for")
            closed = job.event("closed", begin_ns)
            said.append((hang["wall_ns"] - begin_ns) / 1e9)
            given_up = next(one for one in job.since(begin_ns) if one["kind"] == "decision")
            ended.append((given_up["wall_ns"] - begin_ns) / 1e9)
            healed.append((closed["wall_ns"] - given_up["wall_ns"]) / 1e9)
    return {
        "stop_named_s": median(said, "s", Goal("<", GOAL_S)),
        "stop_given_up_s": median(ended, "s"),
        "stop_after_detection_p50_s": median(healed, "s", Goal("<=", 0.6)),
    }


def calm(seconds: float) -> dict[str, Figure]:
    """Count the hangs that are reported while nothing is wrong."""
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        with Job(LONG, ranks=RANKS, kind="pauses") as job:
            job.settle(SETTLE_STEPS)
            begin_ns = time.time_ns()
            job.follow()
            time.sleep(seconds)  # the time in which no hang may be reported
            found = [one for one in job.since(begin_ns) if one["kind"] == "hang"]
            steps = job.settle(1)[0]["step"]
    finally:
        for process in busy:
            process.kill()
            process.wait()
    for event in found:
        print(event["text"], file=sys.stderr, flush=True)
    return {
        "false_alarms": Figure(len(found), "alarms", Goal("==", 0)),
        "alarm_seconds": Figure(seconds, "s"),
        "alarm_steps": Figure(steps, "steps"),
    }


PARTS: dict[str, Callable[..., dict[str, Figure]]] = {"ways": ways, "replaced": replaced, parts.CALM: calm}


def measure(only: Sequence[str] = (), calm_s: float | None = None) -> dict[str, Figure]:
    """The figures of these parts, or of all."""
    return parts.measure(PARTS, only, calm_s or ALARM_SECONDS)
