"""How much longer the repair of a compiled model takes than that of the same model as it is written.

Two jobs run: one compiles its model, one does not. Their ranks are killed in turn, at random moments of a step. While
one job is killed and heals, the other one is paused, so both meet the same machine. All that is measured comes after
the first compile: the compiled job has trained, and its node's standby has imported the compiler. Its caches are in a
folder of their own, so they hold nothing of other runs.

The time runs from the signal to the first step of all ranks, as in recovery.py, and has the same phases. The weights of
either job are compared with those of an undisturbed run to the same step. This module compiles nothing itself.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from taskd.bench.job import PATIENCE_S, Broken, Job
from taskd.bench.recovery import BETWEEN, PHASES, healed, tell, weights_of
from taskd.bench.report import Figure, Goal, median, unmeasured

SIDES = {"plain": "", "compiled": "compiled-"}
MODELS = ("layers", "attention")
WORDS = (256, 4, 60_000)
RANKS = 2
VICTIM = 1
FAULTS = 10
MODEL_S = 240.0
"""After this time a model is not disturbed again."""
RATIO = Goal("<=", 2)
PREPARED = "this node's standby has the compiler imported"
"""What a launcher says as soon as a newcomer of its node would find the compiler."""


@dataclass
class _Model:
    """What was measured of one model."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    phases: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: {side: {name: [] for name in PHASES} for side in SIDES}
    )
    identical: list[float] = field(default_factory=list)
    reason: str = ""

    def figures(self, name: str) -> dict[str, Figure]:
        """The reported figures."""
        plain, compiled = (self.seconds[side] for side in SIDES)
        pairs = [late / soon for soon, late in zip(plain, compiled, strict=False)]
        found = {f"{name}_ratio": unmeasured("ratio", self.reason or "no pair of repairs was measured", RATIO)}
        if pairs:
            ratio = statistics.median(compiled) / statistics.median(plain)
            found[f"{name}_ratio"] = Figure(ratio, "ratio", RATIO, pairs, self.reason)
        for side in SIDES:
            found[f"{name}_{side}_ms"] = median([1000 * one for one in self.seconds[side]], "ms")
            for phase, values in self.phases[side].items():
                found[f"{name}_{side}_{phase}_ms"] = median(values, "ms")
        return found


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    models = {name: _measured(name) for name in MODELS}
    figures: dict[str, Figure] = {}
    for name, model in models.items():
        figures |= model.figures(name)
    identical = [one for model in models.values() for one in model.identical]
    reasons = " ".join(f"{name}: {model.reason}" for name, model in models.items() if model.reason)
    share = sum(identical) / len(identical) if identical else None
    figures["weights_identical_share"] = Figure(share, "share", Goal("==", 1), identical, reasons)
    return figures


def _measured(name: str) -> _Model:
    """Measure one model. An error becomes a reason in the results, because another model follows."""
    model = _Model()
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as cache:
        more = {"TORCHINDUCTOR_CACHE_DIR": cache, "TASKD_STD_LOG_LEVEL": "INFO"}  # the level of PREPARED
        kinds = {side: f"{word}{name}" for side, word in SIDES.items()}
        try:
            for side, (last, weights) in _disturbed(name, kinds, more, model).items():
                with Job(WORDS, ranks=RANKS, last_step=last, kind=kinds[side], more=more) as calm:
                    wanted = weights_of(calm)
                model.identical.append(float(bool(wanted) and weights == wanted))
        except Broken as error:
            model.reason = str(error)
            model.identical.append(0.0)
    return model


def _disturbed(
    name: str, kinds: Mapping[str, str], more: Mapping[str, str], model: _Model
) -> dict[str, tuple[int, str]]:
    """Disturb both jobs of one model in turn; return for each its last step and its weights."""
    ends: dict[str, tuple[int, str]] = {}
    with (
        Job(WORDS, ranks=RANKS, kind=kinds["plain"]) as plain,
        Job(WORDS, ranks=RANKS, kind=kinds["compiled"], more=more) as compiled,
    ):
        jobs = {"plain": plain, "compiled": compiled}
        for job in jobs.values():
            job.settle(BETWEEN)  # the first step is over: it compiles, and a pause would wait for it in vain
            _order(job, "pause", "--timeout", "7200")
        _wait_for_compiler(compiled)
        late = time.monotonic() + MODEL_S
        for turn in range(FAULTS):
            for side in sorted(jobs, reverse=bool(turn % 2)):
                _disturb(name, side, jobs[side], model)
            if time.monotonic() > late:
                break
        for side, job in jobs.items():
            _order(job, "resume")
            ends[side] = job.finish(), weights_of(job)
    return ends


def _disturb(name: str, side: str, job: Job, model: _Model) -> None:
    """Let one job go on, kill a rank of it, wait until it has healed, and pause it again."""
    _order(job, "resume")
    seconds, phases = healed(job, tell(job, (VICTIM,), signal.SIGKILL))
    _order(job, "pause", "--timeout", "7200")
    model.seconds[side].append(seconds)
    for phase in PHASES:
        model.phases[side][phase].append(phases[phase])
    told = ", ".join(f"{phase} {phases[phase]:.0f}" for phase in PHASES)
    print(f"{name} {side}: {seconds:.3f} s ({told} ms)", file=sys.stderr, flush=True)


def _order(job: Job, *words: str) -> None:
    done = job.command(*words)
    if done.returncode:
        raise Broken(f"taskd {words[0]} failed: {done.stdout}{done.stderr}{job.said()}")


def _wait_for_compiler(job: Job) -> None:
    """Wait until a newcomer would find the compiler. Raises Broken."""
    ends = time.monotonic() + PATIENCE_S
    while not any(PREPARED in line for line in job.lines):
        if time.monotonic() > ends:
            raise Broken(f"no standby has imported the compiler{job.said()}")
        time.sleep(0.1)  # the launcher writes lines and gives no other sign
