"""Rails under training with everything on: what a fault costs a step, when the rail carries again, and who notices.

A job of four ranks on two hosts, which are network namespaces, trains under taskd-run; a rail is broken while it
carries, healed, and broken again once it carries again. A fault's cost is the longest step that any rank took after it,
less a normal step. The weights of each disturbed job are compared with those of one to the same step that nothing
happens to. For false alarms the job is stopped and let go on again and again while both cores are busy.

Nothing is injected into the product. Each part is bounded in time and stands in PARTS with its seconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from taskd.bench import hosts
from taskd.bench.faults import FAULTS
from taskd.bench.hosts import Hosts
from taskd.bench.job import Broken, Job
from taskd.bench.members import until
from taskd.bench.report import Figure, Goal, median, percentile, unmeasured
from taskd.errors import UsageError

WORDS = (512, 4, 100_000)
RANKS = 4
TIMES = 32
KIND_S = 240.0
"""After this a kind of fault is not tried again."""
GOALS = {"reset": ("reset", 30.0), "down": ("link_down", 60.0), "silence": ("silence", 200.0)}
"""Fault, name of its figures, goal of its median in milliseconds."""
LASTS_S, AFTER_S = 0.4, 0.3
CARRIES = 1 << 20
"""Bytes that are work: neither probes nor what makes a connection."""
BACK_S = 90.0
CALM_S = 600.0
PAUSE_S = 0.4
"""Of an unevenly training rank; shorter than what means that it hangs."""
ALARMS = ("rail", "opened", "suspect", "lost", "process")
_BUSY = "while True: pass"
Figures = dict[str, Figure]


@dataclass
class _Runs:
    """What one kind of fault gave."""

    begins: list[int] = field(default_factory=list)
    healed: list[int] = field(default_factory=list)
    back: list[int] = field(default_factory=list)
    cost_ms: list[float] = field(default_factory=list)
    disturbed: list[float] = field(default_factory=list)
    equal: bool = False
    reason: str = ""


def measure(only: Sequence[str] = (), seconds: float | None = None) -> Figures:
    """The figures of these parts, of all if none is named; `seconds`: how long false alarms are waited for."""
    unknown = set(only) - PARTS.keys()
    if unknown:
        raise UsageError(f"{', '.join(sorted(unknown))} is no part of this benchmark; there are {', '.join(PARTS)}.")
    figures: Figures = {}
    for name, part in PARTS.items():
        if name in only or not only:
            figures |= part(CALM_S if seconds is None else seconds) if name == "calm" else part()
    return figures


@contextlib.contextmanager
def _two_hosts() -> Iterator[Hosts]:
    """Raises Broken where there can be none."""
    reason = hosts.why_not()
    if reason:
        raise Broken(reason)
    with Hosts(2) as two:
        yield two


def _faults() -> Figures:
    figures: Figures = {}
    found = {fault: _measured(fault) for fault in GOALS}
    for fault, (name, goal) in GOALS.items():
        runs = found[fault]
        figures[f"{name}_p50_ms"] = median(runs.cost_ms, "ms", Goal("<", goal))
        figures[f"{name}_p99_ms"] = percentile(runs.cost_ms, 0.99, "ms")
    share = [float(runs.equal) for runs in found.values()]
    reasons = "; ".join(f"{fault}: {runs.reason}" for fault, runs in found.items() if runs.reason)
    figures["bit_equal_share"] = Figure(statistics.mean(share), "share", Goal("==", 1), share, reasons)
    back = [(at - since) / 1e9 for runs in found.values() for since, at in zip(runs.healed, runs.back, strict=False)]
    figures["back_s"] = median(back, "s")
    disturbed = [count for runs in found.values() for count in runs.disturbed]
    worst = (
        Figure(max(disturbed), "ranks", Goal("==", 0), disturbed)
        if disturbed
        else unmeasured("ranks", "no rail came back", Goal("==", 0))
    )
    return figures | {"back_disturbed_ranks": worst}


def _measured(name: str) -> _Runs:
    """All faults of one kind; what goes wrong becomes a reason, for the other kinds are still to come."""
    runs, begin = _Runs(), time.monotonic()
    try:
        with _two_hosts() as two:
            last, weights = _disturbed(two, name, runs, begin + KIND_S)
            with Job(WORDS, ranks=RANKS, nodes=2, hosts=two, last_step=last) as job:
                runs.equal = bool(weights) and weights == _weights(job)
    except Broken as error:
        runs.reason = str(error).splitlines()[0]
    line = (
        f"{name}: {len(runs.cost_ms)} faults, identical: {runs.equal}, {time.monotonic() - begin:.0f} s {runs.reason}"
    )
    print(line, file=sys.stderr, flush=True)
    return runs


def _disturbed(two: Hosts, name: str, runs: _Runs, ends: float) -> tuple[int, str]:
    """Disturb one job; its last step and its weights."""
    fault = FAULTS[name]
    with Job(WORDS, ranks=RANKS, nodes=2, hosts=two) as job:
        job.settle(3)
        while len(runs.begins) < TIMES and time.monotonic() < ends:
            host, rail = len(runs.begins) % 2, two.rails[len(runs.begins) // 2 % 2]
            _carried(two, rail)
            runs.begins.append(fault.inject(two, host, rail))
            time.sleep(LASTS_S)  # how long a fault lasts is part of it
            fault.heal(two, host, rail)
            runs.healed.append(time.monotonic_ns())
            _carried(two, rail)
            runs.back.append(time.monotonic_ns())
            time.sleep(AFTER_S)  # steps to compare with
        last = job.finish()
        weights = _weights(job)
        _cost(list(job.times().values()), runs)
        return last, weights


def _carried(two: Hosts, rail: str) -> None:
    """Wait until training uses this rail. Raises Broken."""
    host = two.hosts[0]
    goal = host.bytes(rail) + CARRIES
    if not until(lambda: host.bytes(rail) >= goal, BACK_S):
        raise Broken(f"rail {rail} carried nothing for {BACK_S:.0f} s")


def _cost(times: list[list[tuple[int, int]]], runs: _Runs) -> None:
    """What the steps say of each fault, and of the return of each rail."""
    normal = statistics.median(end - begin for one in times for begin, end in one)
    for begin, healed, back in zip(runs.begins, runs.healed, runs.back, strict=True):
        runs.cost_ms.append(max(0.0, max(_longest(one, begin, healed) for one in times) - normal) / 1e6)
        until_ns = back + int(AFTER_S * 1e9)
        runs.disturbed.append(sum(_longest(one, healed, until_ns) > 2 * normal for one in times))


def _longest(steps: list[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """The longest step that ended within, or was under way at the end, as far as it lies after the begin."""
    return max((end - max(begin, begin_ns) for begin, end in steps if end > begin_ns and begin < end_ns), default=0)


def _weights(job: Job) -> str:
    return next((one["weights"] for one in job.results() if "weights" in one), "")


def _calm(seconds: float) -> Figures:
    """Healthy but uneven training: whatever the manager noted against a rail, a rank or a node is a false alarm."""
    goal = Goal("==", 0)
    try:
        with _two_hosts() as two, Job(WORDS, ranks=RANKS, nodes=2, hosts=two) as job:
            job.settle(3)
            begin_ns = time.time_ns()
            job.follow()
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                _uneven(job, min(ends, time.monotonic() + seconds / 10))
            alarms = [event for event in job.since(begin_ns) if event["kind"] in ALARMS]
            last = job.finish()
            job.results()
    except Broken as error:
        return {"false_alarms": unmeasured("alarms", str(error).splitlines()[0], goal)}
    texts = "; ".join(f"{event['kind']}: {event['text']}" for event in alarms[:3])
    return {"false_alarms": Figure(len(alarms), "alarms", goal, (len(alarms),), texts or f"over {last} steps")}


def _uneven(job: Job, ends: float) -> None:
    """Both cores busy, then a rank that is stopped for a moment, then nothing."""
    third = max(0.1, (ends - time.monotonic()) / 3)
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        time.sleep(third)  # the load lasts
    finally:
        for other in busy:
            other.kill()
            other.wait()
    pid = job.settle(1)[RANKS - 1]["pid"]
    os.kill(pid, signal.SIGSTOP)
    time.sleep(PAUSE_S)  # a rank that computes nothing
    os.kill(pid, signal.SIGCONT)
    time.sleep(third)  # steady training


PARTS: dict[str, Callable[..., Figures]] = {
    "faults": _faults,  # 3 x 240 s at most, and three jobs that nothing happens to
    "calm": _calm,  # 600 s
}
