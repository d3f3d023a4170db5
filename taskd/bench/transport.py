"""The rail transport compared with gloo: time per operation and per step, two rails against one, the cost of faults.

Both sides of a ratio are groups of the same processes, which take turns. Faults are real faults between two hosts that
are network namespaces. Each fault is timed from the system call that caused it to the end of the operation that it hit.
Every bit of every operation is compared with the earlier result of the same operation. A figure with a number of ranks
in its name is for that many ranks; without a number it is the worse one of both.

Nothing is injected into the product. Each part is bounded in time. A part that fails is reported with its reason, and
the others go on. PARTS lists the parts with their seconds on a quiet machine with two cores.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from taskd.bench import hosts, parts
from taskd.bench.faults import FAULTS
from taskd.bench.hosts import Hosts
from taskd.bench.members import Failed, Ranks
from taskd.bench.report import Figure, Goal, median, percentile, unmeasured

MEGABYTE = 1 << 18
"""The number of elements of four bytes in a mebibyte."""
SIDES = ("gloo", "rail")
TURNS = 7
SIZES = (2, 4)
PATIENCE_S = 240.0
CASES = (
    ("allreduce_4kb", "all_reduce", 1 << 10, 400),
    ("allreduce_1mb", "all_reduce", MEGABYTE, 40),
    ("allreduce_25mb", "all_reduce", 25 * MEGABYTE, 4),
    ("allreduce_256mb", "all_reduce", 256 * MEGABYTE, 1),
    ("allgather_25mb", "all_gather", 25 * MEGABYTE, 3),
)
"""Name, operation, number of elements of a rank's input, number of operations in a turn."""
STEPS = 30
LINK_MEGABITS = 1000.0
STRIPED = 16 * MEGABYTE
STRIPE_TURNS = 5
STRIPE_S = 2.0
BROKEN = 4 * MEGABYTE
"""The number of elements of the operation that faults hit."""
TIMES = 32
FAULT_GOALS = {"reset": ("reset", 15.0), "down": ("link_down", 30.0), "silence": ("silence", 150.0)}
"""Fault, the name of its figures, and the goal of its median in milliseconds."""
LASTS_S, AFTER_S = 0.4, 0.15
ABORTS = 60
REST_S = 10.0
MANY = 8
CALM_S = 600.0
_BUSY = "while True: pass"
_UNEVEN: dict[str, Any] = {"elements": MEGABYTE, "mixed": True, "idle_every": 50, "idle_s": 1.0}
"""Bursts of rounds, with idle times in between."""
Figures = dict[str, Figure]


def measure(only: Sequence[str] = (), seconds: float | None = None) -> Figures:
    """The figures of these parts, or of all if none is named. `seconds`: how long to wait for false alarms."""
    return parts.measure(PARTS, only, CALM_S if seconds is None else seconds)


def _reason(error: Failed) -> str:
    """One line of this error: the last error that a rank printed."""
    lines = [line for line in str(error).splitlines() if "Error" in line]
    return lines[-1] if lines else str(error).splitlines()[0]


# ---- compared with gloo -----------------------------------------------------------------------------------------


def _collectives() -> Figures:
    names = [f"{name}_ratio" for name, *_ in CASES]
    return _ratios("compare", names, cases=CASES)


def _ddp() -> Figures:
    return _ratios("train", ["ddp_ratio"], steps=STEPS, batch=8)


def _ratios(task: str, names: list[str], **words: Any) -> Figures:
    """For each name, the ratio for each number of ranks, and the worst of these ratios."""
    found: Figures = {}
    for size in SIZES:
        found |= {f"{name}_{size}_ranks": one for name, one in _versus(task, size, names, **words).items()}
    return {name: _worse([found[f"{name}_{size}_ranks"] for size in SIZES]) for name in names} | found


def _worse(figures: list[Figure]) -> Figure:
    """The worst of these ratios. A ratio that could not be measured is worse than any other."""
    return max(figures, key=lambda one: float("inf") if one.value is None else one.value)


def _versus(task: str, size: int, names: list[str], **words: Any) -> Figures:
    goal = Goal("<=", 1.0)
    try:
        with Ranks(task, size, backend="gloo", sides=SIDES, turns=TURNS, **words) as ranks:
            ranks.wait("done", PATIENCE_S)
            turns = {f"{one['case']}_ratio": one["turns"] for one in ranks.objects("case")}
        return {name: median([rail / gloo for gloo, rail in turns[name]], "ratio", goal) for name in names}
    except Failed as error:
        return {name: unmeasured("ratio", _reason(error), goal) for name in names}


# ---- two rails --------------------------------------------------------------------------------------------------


def _stripes() -> Figures:
    """Compare, in turns, the bandwidth over two limited rails, over one, and over two after one of them was cut."""
    goals = {"stripe_2_rails": Goal(">=", 1.8), "one_rail_left": Goal(">=", 0.95)}
    found: dict[str, list[float]] = {name: [] for name in goals}
    try:
        for _ in range(STRIPE_TURNS):
            with _two_hosts(LINK_MEGABITS) as two:
                alone = _pace(two, two.rails[:1], cut=False)[0]
                both, left = _pace(two, two.rails, cut=True)
            found["stripe_2_rails"].append(alone / both)
            found["one_rail_left"].append(alone / left)
    except Failed as error:
        return {name: unmeasured("ratio", _reason(error), goal) for name, goal in goals.items()}
    return {name: median(found[name], "ratio", goal) for name, goal in goals.items()}


@contextlib.contextmanager
def _two_hosts(megabits: float = 0.0) -> Iterator[Hosts]:
    """Make two hosts, whose rails have this speed if it is not 0. Raises Failed where hosts are not possible."""
    reason = hosts.why_not()
    if reason:
        raise Failed(reason)
    with Hosts(2) as two:
        for host in two.hosts if megabits else []:
            for rail in two.rails:
                two.slow(host.index, rail, megabits)
        yield two


def _pace(two: Hosts, rails: tuple[str, ...], *, cut: bool) -> tuple[float, float]:
    """Seconds per operation over these rails, before and after the last of them is cut."""
    with Ranks("bear", 2, backend="rail", hosts=two, rails=rails, elements=STRIPED) as ranks:
        ranks.wait("ready")
        begin_ns = time.monotonic_ns()
        _last(STRIPE_S)
        cut_ns = time.monotonic_ns()
        if cut:
            two.down(1, rails[-1])
            _last(STRIPE_S)
        end_ns = time.monotonic_ns()
        _stopped(ranks)
        times = [_together(one) for one in zip(*ranks.times(), strict=True)]
    if cut:
        two.up(1, rails[-1])
    settle_ns = int(STRIPE_S * 1e9 / 4)  # the transport first learns the speeds; another figure measures the cut
    return _typical(times, begin_ns + settle_ns, cut_ns), _typical(times, cut_ns + settle_ns, end_ns) if cut else 0.0


def _together(spans: tuple[tuple[int, int], ...]) -> tuple[int, int]:
    """One operation of all ranks: it begins when the last rank has come, and ends when the last rank has its result."""
    return max(begin for begin, _ in spans), max(end for _, end in spans)


def _typical(times: list[tuple[int, int]], begin_ns: int, end_ns: int) -> float:
    within = [end - begin for begin, end in times if begin >= begin_ns and end <= end_ns]
    if not within:
        raise Failed(f"no operation ended in {(end_ns - begin_ns) / 1e9:.1f} s")
    return statistics.median(within) / 1e9


def _last(seconds: float) -> None:
    """Wait this long: the duration is part of the measurement."""
    threading.Event().wait(seconds)


def _stopped(ranks: Ranks) -> list[dict[str, Any]]:
    """Stop the ranks; return their results. Raises Failed if an operation failed."""
    ranks.stop()
    found = ranks.wait("rounds", PATIENCE_S)
    errors = [f"rank {one['rank']}: Error: {one['error']}" for one in found if one["error"]]
    if errors:
        raise Failed("\n".join(errors))
    return found


# ---- faults -----------------------------------------------------------------------------------------------------


def _faults() -> Figures:
    figures: Figures = {}
    shares = []
    for fault, (name, goal) in FAULT_GOALS.items():
        wanted = Goal("<", goal)
        try:
            runs, share = _disturbed(fault)
        except Failed as error:
            figures[f"{name}_p50_ms"] = unmeasured("ms", _reason(error), wanted)
            figures[f"{name}_p99_ms"] = unmeasured("ms", _reason(error))
            shares.append(0.0)
            continue
        figures[f"{name}_p50_ms"] = median(runs, "ms", wanted)
        figures[f"{name}_p99_ms"] = percentile(runs, 0.99, "ms")
        shares.append(share)
    figures["bit_equal_share"] = Figure(min(shares), "share", Goal("==", 1), shares)
    return figures


def _disturbed(name: str) -> tuple[list[float], float]:
    """The milliseconds of each fault of this kind, on rails in turn, and the share of operations that were right."""
    fault, spans = FAULTS[name], []
    with _two_hosts() as two, Ranks("bear", 2, backend="rail", hosts=two, elements=BROKEN) as ranks:
        ranks.wait("ready")
        for number in range(TIMES):
            rail = two.rails[number % len(two.rails)]
            for each in two.rails:  # if a rail were still out, it would be another fault
                if not ranks.flowing(0, each, enough=4 * BROKEN):
                    raise Failed(f"rail {each} carries nothing before fault {number} ({name})")
            begin_ns = fault.inject(two, number % 2, rail)
            _last(LASTS_S if name != "reset" else AFTER_S)
            spans.append((begin_ns, time.monotonic_ns()))
            fault.heal(two, number % 2, rail)
            _last(AFTER_S)
        found = _stopped(ranks)
        times = ranks.times()
    runs = [_cost_ms(times, begin_ns, end_ns) for begin_ns, end_ns in spans]
    return runs, sum(one["equal"] for one in found) / sum(one["rounds"] for one in found)


def _cost_ms(times: list[list[tuple[int, int]]], begin_ns: int, end_ns: int) -> float:
    """The longest time of any rank's operation that overlaps this fault, counted from the fault, or from the
    operation's own begin if that is later.

    It includes the operation's own time. The longest operation counts, not the next one: the operation under way may be
    about to end, and the fault then hits a later one.
    """
    longest = 0
    for one in times:
        hit = [end - max(begin, begin_ns) for begin, end in one if end > begin_ns and begin < end_ns]
        longest = max([longest, *hit])
    return longest / 1e6


def _abort() -> Figures:
    goal = Goal("<", 5)
    try:
        with Ranks("abort", 2, backend="rail", turns=ABORTS, elements=16 * MEGABYTE) as ranks:
            found = ranks.wait("abort_ms", PATIENCE_S)
    except Failed as error:
        return {"abort_p99_ms": unmeasured("ms", _reason(error), goal)}
    return {"abort_p99_ms": percentile([ms for one in found for ms in one["abort_ms"]], 0.99, "ms", goal)}


# ---- at rest ----------------------------------------------------------------------------------------------------


def _rest() -> Figures:
    """The memory that one more session costs, and the share of a core that the transport's thread takes when idle."""
    goal = Goal("==", 0)
    try:
        with Ranks("rest", MANY, backend="rail", seconds=REST_S) as ranks:
            found = ranks.wait("idle_percent", PATIENCE_S)
    except Failed as error:
        reason = _reason(error)
        return {"memory_per_session_kb": unmeasured("kB", reason), "idle_cpu_percent": unmeasured("%", reason, goal)}
    idle = [one["idle_percent"] for one in found]
    return {
        "memory_per_session_kb": median([one["kb"] for one in found], "kB"),
        "idle_cpu_percent": Figure(round(max(idle), 2), "%", goal, idle),
    }


def _calm(seconds: float) -> Figures:
    """Count the rails that are taken down although nothing is broken, with bursts, idle times and both cores busy."""
    goal = Goal("==", 0)
    try:
        with _two_hosts() as two, Ranks("bear", 4, backend="rail", hosts=two, **_UNEVEN) as ranks:
            ranks.wait("ready")
            busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(2 * (os.cpu_count() or 1))]
            try:
                _last(seconds / 2)
            finally:
                for other in busy:
                    other.kill()
                    other.wait()
            _last(seconds / 2)
            found = _stopped(ranks)
    except Failed as error:
        return {"false_suspects": unmeasured("rails", _reason(error), goal)}
    downs = [sum(one["downs"].values()) for one in found]
    return {"false_suspects": Figure(sum(downs), "rails", goal, downs)}


PARTS: dict[str, Callable[..., Figures]] = {
    "collectives": _collectives,  # 120 s
    "ddp": _ddp,  # 40 s
    "stripes": _stripes,  # 90 s
    "faults": _faults,  # 80 s
    "abort": _abort,  # 15 s
    "rest": _rest,  # 40 s
    "calm": _calm,  # 600 s
}
