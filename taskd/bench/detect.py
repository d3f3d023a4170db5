"""How soon the manager notices a killed process of any size, a lost agent and a lost node; and its false alarms.

Each time runs from the signal to the time stamp of the manager's event, both by the time of day of one machine. For
false alarms, other work keeps both cores busy for ten minutes while a job trains. Every event that says that a process
died, or that a node is suspect or lost, is a false alarm. Nothing is injected into the product.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

from taskd.bench.job import Job
from taskd.bench.plane import Plane, plane
from taskd.bench.report import Figure, Goal, median, unmeasured

RUNS = 7
SIZES = {"kill_10mb_ms": 10, "kill_600mb_ms": 600, "kill_3gb_ms": 3_000}
BUSY_SECONDS = 600.0
ALARMS = ("process", "suspect", "lost")
_BUSY = "while True: pass"


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    figures = {name: _kills(megabytes) for name, megabytes in SIZES.items()}
    figures["agent_lost_s"] = _agent_losses()
    figures["node_lost_s"] = _node_losses()
    figures["false_alarms"] = _false_alarms()
    return figures


def _kills(megabytes: int) -> Figure:
    goal = Goal("<", 20)
    free_mb = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20
    if free_mb < 2 * megabytes:
        return unmeasured("ms", f"only {free_mb} MB of memory are free", goal)
    runs = []
    with plane(1, 2) as one:
        one.trainer(0)
        for _ in range(RUNS):
            victim = one.trainer(1, megabytes)
            seconds = _kill(one, [victim.pid], ("process",))
            victim.wait()
            if seconds is not None:
                runs.append(seconds * 1e3)
    return median(runs, "ms", goal)


def _agent_losses() -> Figure:
    """The time until the manager notices that a side agent died alone; its workers start another agent. The manager
    says that the node is suspect, or that there is another agent, whichever comes first."""
    runs = []
    for _ in range(RUNS):
        with plane(2, 2) as one:
            for rank in range(4):
                one.trainer(rank)
            seconds = _kill(one, [one.agent_pid("node-1")], ("suspect", "lost", "node"))
            if seconds is not None:
                runs.append(seconds)
    return median(runs, "s", Goal("<", 2))


def _node_losses() -> Figure:
    """The time until the manager notices that a launcher died with its workers, in a job without a spare."""
    runs = []
    for _ in range(RUNS):
        with Job((64, 2, 20_000), ranks=4, nodes=2) as job:
            job.settle(5)
            begin_ns = time.time_ns()
            os.kill(job.launchers[1].pid, signal.SIGKILL)
            runs.append((job.event("lost", begin_ns)["wall_ns"] - begin_ns) / 1e9)
    return median(runs, "s", Goal("<", 2))


def _kill(one: Plane, pids: list[int], kinds: tuple[str, ...]) -> float | None:
    """Seconds from SIGKILL to the first event of one of these kinds."""
    begin_ns = time.time_ns()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return one.after(begin_ns, lambda event: event["kind"] in kinds, 60)


def _false_alarms() -> Figure:
    alarms: list[dict[str, Any]] = []
    with plane(2, 2) as one:
        for rank in range(4):
            one.trainer(rank)
        begin_ns = time.time_ns()
        others = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(2 * (os.cpu_count() or 1))]
        try:
            others[0].wait(BUSY_SECONDS)
        except subprocess.TimeoutExpired:
            events = one.ask("events")["events"]
            alarms = [event for event in events if event["wall_ns"] >= begin_ns and event["kind"] in ALARMS]
        finally:
            for other in others:
                other.kill()
                other.wait()
    return Figure(len(alarms), "alarms", Goal("==", 0), (len(alarms),))
