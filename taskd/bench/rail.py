"""Rails under training with everything on: what a fault costs a step, when the rail carries again, and which ranks
notice.

Jobs of four ranks on two hosts, which are network namespaces, train under taskd-run. A rail is broken while it carries,
and then healed. When it is back in use, the next one is broken. A fault's cost is the longest step of any rank after
it, less a normal step of that job. All jobs end after the same step as one job without faults, and their weights are
compared with that job's weights. Only the first loss of a rail in a job counts for the time until it carries again: a
rail that is lost again within a minute rests longer, by design. For false alarms a job trains under changing load: both
cores are busy, then a rank is stopped for a moment, then nothing happens, again and again.

Nothing is injected into the product. Each part is bounded in time; PARTS lists the parts with their seconds.
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

from taskd.bench import hosts, parts
from taskd.bench.faults import FAULTS
from taskd.bench.hosts import Hosts
from taskd.bench.job import Broken, Job
from taskd.bench.members import until
from taskd.bench.report import Figure, Goal, median, percentile, unmeasured

WORDS = (512, 4, 100_000)
RANKS = 4
GOALS = {"reset": ("reset", 30.0), "down": ("link_down", 60.0), "silence": ("silence", 200.0)}
"""Fault, the name of its figures, and the goal of its median in milliseconds."""
JOBS = 10
STRIKES = 4
"""The number of faults in each job: each rail is lost twice, and rests 2 s and then 4 s."""
JOB_S = 22.0
"""How long the job without faults trains."""
FAULTS_S = 24.0
"""How long rails are broken in the other jobs, which take at least as long to reach the same step."""
WHOLE_S = 400.0
"""No job begins later than this after the begin of the first one."""
LASTS_S, AFTER_S = 0.4, 0.3
CALM_BEFORE_NS = 1_000_000_000
"""This long before a rail carries again, it rests and nothing happens."""
CARRIES = 1 << 20
"""This many bytes are real work, more than probes and the set-up of a connection send."""
CALM_S = 600.0
PAUSE_S = 0.4
"""How long a rank is stopped in uneven training; shorter than a hang."""
ALARMS = ("rail", "opened", "suspect", "lost", "process")
_BUSY = "while True: pass"
Figures = dict[str, Figure]


@dataclass
class _Fault:
    """One fault: its kind, its moments in nanoseconds of CLOCK_MONOTONIC, and its cost."""

    kind: str
    is_first: bool  # whether this is the first fault of its rail in its job
    begin: int
    healed: int = 0
    back: int = 0  # when the rail carried again; 0: not seen
    cost_ms: float = 0.0
    disturbed: int = 0  # the number of slowed ranks when the rail came back
    usual: int = 0  # the same number a while before that, when nothing happened


@dataclass
class _Run:
    """The results of one job."""

    faults: list[_Fault] = field(default_factory=list)
    equal: bool = False
    reason: str = ""


def measure(only: Sequence[str] = (), seconds: float | None = None) -> Figures:
    """The figures of these parts, or of all if none is named. `seconds`: how long to wait for false alarms."""
    return parts.measure(PARTS, only, CALM_S if seconds is None else seconds)


@contextlib.contextmanager
def _two_hosts() -> Iterator[Hosts]:
    """Make two hosts. Raises Broken where hosts are not possible."""
    reason = hosts.why_not()
    if reason:
        raise Broken(reason)
    with Hosts(2) as two:
        yield two


def _faults() -> Figures:
    runs, reason = [], ""
    ends = time.monotonic() + WHOLE_S
    try:
        with _two_hosts() as two:
            last, weights = _undisturbed(two)
            for number in range(JOBS):
                if time.monotonic() > ends:
                    break
                runs.append(_disturbed(two, number, last, weights))
                _say(number, runs[-1])
    except Broken as error:
        reason = str(error).splitlines()[0]
    return _figures(runs, reason)


def _say(number: int, run: _Run) -> None:
    faults = ", ".join(f"{fault.kind} {fault.cost_ms:.0f} ms" for fault in run.faults)
    line = f"job {number + 1} of {JOBS}: {faults or 'no fault'}; identical: {run.equal} {run.reason}"
    print(line, file=sys.stderr, flush=True)


def _figures(runs: Sequence[_Run], reason: str) -> Figures:
    faults = [fault for run in runs for fault in run.faults]
    reason = "; ".join(filter(None, [reason, *(run.reason for run in runs)]))
    figures: Figures = {}
    for kind, (name, goal) in GOALS.items():
        cost_ms = [fault.cost_ms for fault in faults if fault.kind == kind]
        figures[f"{name}_p50_ms"] = median(cost_ms, "ms", Goal("<", goal))
        figures[f"{name}_p99_ms"] = percentile(cost_ms, 0.99, "ms")
    share, same = [float(run.equal) for run in runs], Goal("==", 1)
    figures["bit_equal_share"] = (
        Figure(statistics.mean(share), "share", same, share, reason)
        if share
        else unmeasured("share", reason or "no job ended", same)
    )
    returned = [fault for fault in faults if fault.back]
    figures["back_s"] = median([(one.back - one.healed) / 1e9 for one in returned if one.is_first], "s")
    figures["back_disturbed_ranks"] = _disturbed_ranks(returned)
    return figures


def _disturbed_ranks(returned: Sequence[_Fault]) -> Figure:
    """The number of disturbed ranks at a typical return. The text has all returns, and a time without events."""
    none = Goal("==", 0)
    if not returned:
        return unmeasured("ranks", "no rail came back", none)
    ranks = [float(fault.disturbed) for fault in returned]
    usual = statistics.mean(fault.usual for fault in returned)
    text = (
        f"{statistics.mean(ranks):.2f} at {len(ranks)} returns, {usual:.2f} a second before; {max(ranks):.0f} at most"
    )
    return Figure(statistics.median(ranks), "ranks", none, ranks, text)


def _undisturbed(two: Hosts) -> tuple[int, str]:
    """The last step and the weights of a job without faults. Raises Broken."""
    with Job(WORDS, ranks=RANKS, nodes=2, hosts=two) as job:
        job.settle(3)
        time.sleep(JOB_S)  # steady training
        last = job.finish()
        return last, _weights(job)


def _disturbed(two: Hosts, number: int, last: int, weights: str) -> _Run:
    """Run one job with faults. An error becomes the reason in its results, because more jobs follow."""
    run, kinds = _Run(), list(GOALS)
    try:
        with Job(WORDS, ranks=RANKS, nodes=2, hosts=two, last_step=last) as job:
            job.settle(3)
            ends = time.monotonic() + FAULTS_S
            for turn in range(STRIKES):
                rail, kind = two.rails[turn % len(two.rails)], kinds[(turn + number) % len(kinds)]
                fault = _strike(two, kind, (turn // len(two.rails) + number) % 2, rail, turn < len(two.rails))
                run.faults.append(fault)
                if not _comes_back(two, job, fault, rail, ends):
                    break
            run.equal = _weights(job) == weights
            _cost(list(job.times().values()), run.faults)
    except Broken as error:
        run.reason = str(error).splitlines()[0]
    return run


def _strike(two: Hosts, kind: str, host: int, rail: str, is_first: bool) -> _Fault:
    """Break a rail that carries, and heal it. Raises Broken."""
    if not _carries(two, rail, time.monotonic() + FAULTS_S):
        raise Broken(f"rail {rail} carried nothing for {FAULTS_S:.0f} s")
    begin = FAULTS[kind].inject(two, host, rail)
    time.sleep(LASTS_S)  # the duration is part of the fault
    FAULTS[kind].heal(two, host, rail)
    return _Fault(kind, is_first, begin, time.monotonic_ns())


def _comes_back(two: Hosts, job: Job, fault: _Fault, rail: str, ends: float) -> bool:
    """Wait until the rail is put back, carries, and its incident is closed; False if not all happen before `ends`."""
    healed_wall_ns = time.time_ns() - (time.monotonic_ns() - fault.healed)
    try:
        job.event("rail", healed_wall_ns, max(0.0, ends - time.monotonic()), words="may carry again")
        if not _carries(two, rail, ends):
            return False
        fault.back = time.monotonic_ns()
        job.event("closed", healed_wall_ns, max(0.0, ends - time.monotonic()))
    except Broken:
        return False
    time.sleep(AFTER_S)  # more steps, to compare with
    return True


def _carries(two: Hosts, rail: str, ends: float) -> bool:
    """Wait until training uses this rail; False if it does not before `ends`."""
    host = two.hosts[0]
    goal = host.bytes(rail) + CARRIES
    return until(lambda: host.bytes(rail) >= goal, max(0.0, ends - time.monotonic()))


def _cost(times: list[list[tuple[int, int]]], faults: Sequence[_Fault]) -> None:
    """Compute from the steps what each fault cost, and how many ranks the return of its rail slowed."""
    normal = statistics.median(end - begin for one in times for begin, end in one)
    for fault in faults:
        fault.cost_ms = max(0.0, max(_longest(one, fault.begin, fault.healed) for one in times) - normal) / 1e6
        if fault.back:
            fault.disturbed = _slowed(times, fault.back, 2 * normal)
            fault.usual = _slowed(times, fault.back - CALM_BEFORE_NS, 2 * normal)


def _slowed(times: list[list[tuple[int, int]]], moment: int, limit_ns: float) -> int:
    """The number of ranks with a step longer than the limit around that moment."""
    around = int(AFTER_S * 1e9)
    return sum(_longest(one, moment - around, moment + around) > limit_ns for one in times)


def _longest(steps: list[tuple[int, int]], begin_ns: int, end_ns: int) -> int:
    """The longest step that overlaps this time. Only its part after `begin_ns` counts."""
    return max((end - max(begin, begin_ns) for begin, end in steps if end > begin_ns and begin < end_ns), default=0)


def _weights(job: Job) -> str:
    return next((one["weights"] for one in job.results() if "weights" in one), "")


def _calm(seconds: float) -> Figures:
    """Train without faults but unevenly: each event against a rail, a rank or a node is a false alarm."""
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
    """Keep both cores busy, then stop a rank for a moment, then do nothing."""
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
    "faults": _faults,  # eleven jobs, 400 s
    "calm": _calm,  # 600 s, or as --seconds says
}
