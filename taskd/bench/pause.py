"""Pauses and switches of rails under training, as an operator orders them, and what they cost: `taskd bench pause`.

Part "pauses": a job of four ranks on one node is paused and resumed again and again, at random moments, by a client in
this process. All times are of one clock of this machine. The ranks note when each of their steps begins and ends. So
the time until all stand runs from the request to the last end of a step before the pause, less a usual step. What the
operator hears is measured, too, and it comes later. Part "switches": on two hosts, which are network namespaces, a rail
is taken out of use and put back again and again. The cost is the longest step of any rank meanwhile, less a usual step.
Both jobs are compared with an undisturbed one to the same step. Nothing is injected into the product.
"""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskd.bench import hosts, parts
from taskd.bench.hosts import Hosts
from taskd.bench.job import Broken, Job
from taskd.bench.report import Figure, Goal, median, unmeasured
from taskd.client import Client

RANKS = 4
WORDS = (256, 4, 100_000)
PAUSES = 30
SWITCHES = 10
GOAL_MS = 50.0
STANDS_S = 0.1
"""How long the job stands in each pause."""
SEED = 11
Times = Sequence[Sequence[tuple[int, int]]]
"""For each rank, begin and end of each of its steps."""
Figures = dict[str, Figure]


@dataclass(frozen=True)
class Asked:
    """One pause: when it was asked for, when the operator heard that all stand, and when the end was asked for."""

    begin: int
    heard: int
    end: int


def measure(only: Sequence[str] = (), seconds: float | None = None) -> Figures:
    """The figures of these parts, or of all if none is named."""
    return parts.measure(PARTS, only, seconds or 0.0)


def _pauses() -> Figures:
    try:
        with Job(WORDS, ranks=RANKS) as job:
            asked = _asked(job)
            last = job.finish()
            weights = _weights(job)
            figures = _of_pauses(asked, list(job.times().values()))
        with Job(WORDS, ranks=RANKS, last_step=last) as job:
            return figures | _identical("pauses", weights, _weights(job))
    except Broken as error:
        return _nothing(("stand_over_step_ms", "heard_ms", "resume_ms", "skew_steps"), error)


def _asked(job: Job) -> list[Asked]:
    """Pause and resume the job. Raises Broken."""
    draws, found = random.Random(SEED), list[Asked]()
    job.settle(3)
    with _client(job) as client:
        for _ in range(PAUSES):
            time.sleep(draws.uniform(0.2, 0.4))  # training between two pauses, ended at a random moment
            begin = time.monotonic_ns()
            result = client.pause(seconds=60)
            heard = time.monotonic_ns()
            if not result.done:
                raise Broken(f"a pause failed: {result.words}{job.said()}")
            time.sleep(STANDS_S)  # the job stands
            found.append(Asked(begin, heard, time.monotonic_ns()))
            client.resume()
    return found


def _client(job: Job) -> Client:
    """Return a client of the job's manager, in this process."""
    before = dict(os.environ)
    os.environ.update(job.environment)
    try:
        return Client()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _of_pauses(asked: Sequence[Asked], times: Times) -> Figures:
    """Compute the figures of these pauses from the steps of all ranks."""
    usual = _usual(times)
    stands, heard, resumes, skews = list[float](), list[float](), list[float](), list[float]()
    for one in asked:
        # The first step of each rank that begins after the end was asked for, by its number.
        first = [next(number for number, (begin, _) in enumerate(steps) if begin >= one.end) for steps in times]
        stood = max(steps[number - 1][1] for steps, number in zip(times, first, strict=True))
        begun = max(steps[number][0] for steps, number in zip(times, first, strict=True))
        stands.append(max(0.0, stood - one.begin - usual) / 1e6)
        heard.append((one.heard - one.begin) / 1e6)
        resumes.append((begun - one.end) / 1e6)
        skews.append(float(max(first) - min(first)))
    return {
        "stand_over_step_ms": median(stands, "ms", Goal("<", GOAL_MS)),
        "heard_ms": median(heard, "ms"),
        "resume_ms": median(resumes, "ms"),
        "skew_steps": Figure(max(skews), "steps", Goal("==", 0), skews),
        "step_ms": Figure(usual / 1e6, "ms"),
    }


def _switches() -> Figures:
    reason = hosts.why_not()
    try:
        if reason:
            raise Broken(reason)
        with Hosts(2) as two:
            with Job(WORDS, ranks=RANKS, nodes=2, hosts=two) as job:
                changes = _changed(two, job)
                last = job.finish()
                weights = _weights(job)
                figures = _of_switches(changes, list(job.times().values()))
            with Job(WORDS, ranks=RANKS, nodes=2, hosts=two, last_step=last) as job:
                return figures | _identical("switches", weights, _weights(job))
    except Broken as error:
        return _nothing(("switch_added_ms", "back_added_ms"), error)


def _changed(two: Hosts, job: Job) -> dict[str, list[tuple[int, int]]]:
    """Take rails out of use and put them back. Return when each order was given and when its change had ended."""
    changes: dict[str, list[tuple[int, int]]] = {"out": [], "back": []}
    job.settle(3)
    for turn in range(SWITCHES):
        rail = two.rails[turn % len(two.rails)]
        for action, found in changes.items():
            begin = time.monotonic_ns()
            answer = job.command("rail", action, rail)
            if answer.returncode:
                raise Broken(f"taskd rail {action} {rail} failed: {answer.stdout}{answer.stderr}")
            found.append((begin, time.monotonic_ns()))
    return changes


def _of_switches(changes: dict[str, list[tuple[int, int]]], times: Times) -> Figures:
    """Compute what each change of a rail has added to the longest step."""
    usual = _usual(times)
    added = {
        action: [max(0.0, max(_longest(steps, *span) for steps in times) - usual) / 1e6 for span in spans]
        for action, spans in changes.items()
    }
    return {
        "switch_added_ms": median(added["out"], "ms", Goal("<", GOAL_MS)),
        "back_added_ms": median(added["back"], "ms", Goal("<", GOAL_MS)),
    }


def _usual(times: Times) -> float:
    """The usual length of a step, in nanoseconds."""
    return statistics.median(end - begin for steps in times for begin, end in steps)


def _longest(steps: Sequence[tuple[int, int]], begin: int, end: int) -> int:
    """The longest step that overlaps this time."""
    return max((till - since for since, till in steps if till > begin and since < end), default=0)


def _identical(name: str, weights: str, wanted: str) -> Figures:
    return {f"{name}_identical": Figure(float(bool(wanted) and weights == wanted), "share", Goal("==", 1))}


def _nothing(names: Sequence[str], error: Broken) -> Figures:
    print(error, file=sys.stderr, flush=True)
    return {name: unmeasured("steps" if "steps" in name else "ms", str(error).splitlines()[0]) for name in names}


def _weights(job: Job) -> str:
    return next((one["weights"] for one in job.results() if "weights" in one), "")


PARTS: dict[str, Callable[..., Figures]] = {
    "pauses": _pauses,
    "switches": _switches,
}
