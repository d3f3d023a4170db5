"""Trainings as people write them, each killed at chosen places of random steps: how many end with other weights.

The trainings lie in the source tree (tests/trust), one small file each, so that anybody can read what is covered. Each
runs undisturbed first. Then a rank is killed in it, again and again; what it ends with must be the same, whether the
rank was replaced or all started over. A run counts as wrong if it ends with exit code 0 and other weights. Steps are
drawn by a fixed seed. It repairs and explains nothing.
"""

from __future__ import annotations

import os
import random
import re
import runpy
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import taskd
from taskd.bench.job import Broken, free_port
from taskd.bench.report import Figure, Goal, unmeasured

KILLS = 20
"""Of each training."""
RANKS = 2
STEPS = range(1, 7)
"""In which somebody dies: in the first one nobody knows yet that a step can be done at all."""
SEED = 7
LIMIT_S = 120.0
FOLDER = Path(taskd.__file__).parent.parent / "tests" / "trust"
_BEFORE = "if a rank dies"
"""Is said before anything has happened, where a death would make all start over."""


@dataclass
class _Tally:
    cases: int = 0
    kills: int = 0
    failed: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: int = 0
    started_over: int = 0


@dataclass(frozen=True)
class _Run:
    """How one training has ended."""

    code: int
    text: str

    def weights(self) -> list[str]:
        """What each rank has said of its weights; several processes write, and a line may begin behind another."""
        return sorted(re.findall(r"weights \d+ [0-9a-f]{64}", self.text))

    def begun(self) -> int:
        """How many processes of ranks have begun to train."""
        return len(re.findall(r"begin \d", self.text))


def measure() -> dict[str, Figure]:
    """All figures of this part."""
    names = ("cases", "kills", "wrong", "failed", "refused", "started_over")
    table = FOLDER / "cases.py"
    if not table.exists():
        return {
            name: unmeasured("runs", f"the trainings lie in the source tree, and {table} is not there")
            for name in names
        }
    tally, draw = _Tally(), random.Random(SEED)
    for (script, calm_place), places in runpy.run_path(str(table))["CASES"].items():
        _case(tally, draw, script, calm_place, places)
    return {
        "cases": Figure(tally.cases, "trainings"),
        "kills": Figure(tally.kills, "kills", Goal("==", KILLS * tally.cases)),
        "wrong": Figure(len(tally.wrong), "runs", Goal("==", 0), reason="; ".join(tally.wrong)),
        "failed": Figure(tally.failed, "runs", Goal("==", 0)),
        "refused": Figure(tally.refused, "runs"),
        "started_over": Figure(tally.started_over, "runs"),
    }


def _case(tally: _Tally, draw: random.Random, script: str, calm_place: str, places: tuple[str, ...]) -> None:
    calm = _train(script, calm_place, -1)
    if len(calm.weights()) != RANKS:
        raise Broken(f"{script} {calm_place} does not train in peace:\n{calm.text}")
    tally.cases += 1
    before = tally.started_over
    for number in range(KILLS):
        place, at = places[number % len(places)], draw.choice(STEPS)
        run = _train(script, place, at)
        over = "all ranks start over" in run.text
        tally.kills += run.begun() > RANKS
        tally.failed += run.code != 0
        tally.started_over += over
        tally.refused += over and _BEFORE in run.text.partition("died")[0]
        if run.code == 0 and run.weights() != calm.weights():
            tally.wrong.append(f"{script} ({place}) in step {at}")
    said = f"{KILLS} kills, {tally.started_over - before} started over, {len(tally.wrong)} wrong so far"
    print(f"{script} {calm_place}: {said}", file=sys.stderr, flush=True)


def _train(script: str, place: str, at: int) -> _Run:
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
        environment = os.environ | {
            "PYTHONPATH": str(FOLDER.parent.parent),
            "TASKD_RUN_DIR": folder,
            "TASKD_JOB_ID": os.path.basename(folder),
            "TASKD_MANAGER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "taskd.run", "--nproc-per-node", str(RANKS), "--master-port", str(free_port())]
        command += [str(FOLDER / f"{script}.py"), "--folder", folder, "--place", place, "--at", str(at)]
        try:
            ended = subprocess.run(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S
            )
        except subprocess.TimeoutExpired as error:
            return _Run(-1, str(error.stdout))
        return _Run(ended.returncode, ended.stdout)
