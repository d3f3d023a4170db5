"""Trainings as people write them, each killed at chosen places and at random moments: how many end with other weights.

The trainings are in the source tree (tests/trust), one small file each, so that anybody can read what is covered. Each
training first runs without a fault. Then a rank is killed in it, again and again. The final weights must be the same,
whether the rank was replaced or all ranks started over. A run is wrong if it ends with exit code 0 and other weights.
There are three kinds of deaths. A rank kills itself at each chosen place, in a random step. Or it kills itself before a
random line of Python among the lines that it runs, which finds the short moments. Or it gets SIGKILL at a random moment
of its training, which finds the long ones. All draws use a fixed seed. This module repairs and explains nothing.
"""

from __future__ import annotations

import os
import random
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from pathlib import Path

import taskd
from taskd.bench.job import Broken, free_port
from taskd.bench.report import Figure, Goal, unmeasured

MOMENTS = 10
"""Each training gets this many random moments and this many random lines, besides its chosen places."""
STEPS = range(1, 7)
"""The steps in which a rank dies. Not the first one: there it is not yet known that a step can be done at all."""
SEED = 7
LIMIT_S = 120.0
FOLDER = Path(taskd.__file__).parent.parent / "tests" / "trust"
_BEFORE = "if a rank dies"
"""These words are printed before any fault, in a training in which a death makes all ranks start over."""


@dataclass
class _Tally:
    cases: int = 0
    deaths: int = 0
    """The intended deaths. A random moment may come when the rank has ended already."""
    kills: int = 0
    failed: int = 0
    wrong: list[str] = field(default_factory=list)
    refused: int = 0
    started_over: int = 0

    def __add__(self, other: _Tally) -> _Tally:
        return _Tally(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass(frozen=True)
class _Death:
    """Where rank 1 dies: at this place of this step, before this line, or this long after it has begun."""

    place: str
    at: int = -1
    line: int = -1
    """0: all lines are recorded, and no rank dies."""
    moment_s: float | None = None

    def __str__(self) -> str:
        if self.moment_s is not None:
            return f"{self.place} after {1000 * self.moment_s:.0f} ms"
        return f"{self.place} at line {self.line}" if self.line > 0 else f"({self.place}) in step {self.at}"


class _Run:
    """One training, and its result."""

    def __init__(self, script: str, death: _Death, ranks: int) -> None:
        self._ranks = ranks
        self._moment_s = death.moment_s
        self._lines: list[str] = []
        self._began_s = 0.0
        self.trained_s = 0.0
        """Seconds from the begin of rank 1 until the last rank has printed its weights."""
        self.killed = False
        """Whether the signal reached the rank while it lived."""
        with tempfile.TemporaryDirectory(prefix="taskd-bench-") as folder:
            self.code = self._train(script, death, folder)
            seen = Path(folder) / "lines"
            self.lines = seen.read_text().splitlines() if seen.exists() else []
            """The lines that rank 1 has run, in this order, if no rank died."""
        self.text = "".join(self._lines)

    def _train(self, script: str, death: _Death, folder: str) -> int:
        environment = os.environ | {
            "PYTHONPATH": str(FOLDER.parent.parent),
            "TASKD_RUN_DIR": folder,
            "TASKD_JOB_ID": os.path.basename(folder),
            "TASKD_MANAGER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "taskd.run", "--nproc-per-node", str(self._ranks)]
        command += ["--master-port", str(free_port()), str(FOLDER / f"{script}.py"), "--folder", folder]
        command += ["--place", death.place, "--at", str(death.at), "--line", str(death.line)]
        with subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as job:
            limit = threading.Timer(LIMIT_S, job.kill)
            limit.start()
            for line in job.stdout or ():
                self._heard(line)
            limit.cancel()
        return job.returncode

    def _heard(self, line: str) -> None:
        self._lines.append(line)
        if (begun := re.search(r"process 1 (\d+)", line)) is not None and not self._began_s:
            self._began_s = time.monotonic()
            if self._moment_s is not None:
                threading.Thread(target=self._kill, args=(os.pidfd_open(int(begun[1])), self._moment_s)).start()
        if "weights " in line:
            self.trained_s = time.monotonic() - self._began_s

    def _kill(self, process: int, moment_s: float) -> None:
        """Kill this process after this time."""
        time.sleep(moment_s)  # the moment itself is drawn, whatever happens in it
        try:
            signal.pidfd_send_signal(process, signal.SIGKILL)
            self.killed = True
        except ProcessLookupError:
            pass  # it had ended already
        finally:
            os.close(process)

    def weights(self) -> list[tuple[str, str]]:
        """The last weights that each rank has printed. Several processes write, so a line may begin behind another one.
        A process that is refused at its script's end has printed its weights before."""
        found = re.findall(r"weights (\d+) ([0-9a-f]{64})", self.text)
        return sorted(dict(found).items())

    def replaced(self) -> bool:
        """Whether more processes have begun to train than there are ranks."""
        return len(re.findall(r"begin \d", self.text)) > self._ranks


def measure() -> dict[str, Figure]:
    """All figures of this part."""
    names = ("cases", "kills", "wrong", "failed", "refused", "started_over")
    table = FOLDER / "cases.py"
    if not table.exists():
        return {
            name: unmeasured("runs", f"the trainings lie in the source tree, and {table} is not there")
            for name in names
        }
    known = runpy.run_path(str(table))
    cases = [
        ((script, calm_place, places), known["RANKS"].get(script, 2))
        for (script, calm_place), places in known["CASES"].items()
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # no figure of this part is a time
        tally = sum(pool.map(lambda case: _case(*case), cases), _Tally())
    return {
        "cases": Figure(tally.cases, "trainings"),
        "kills": Figure(tally.kills, "kills", Goal("==", tally.deaths)),
        "wrong": Figure(len(tally.wrong), "runs", Goal("==", 0), reason="; ".join(tally.wrong)),
        "failed": Figure(tally.failed, "runs", Goal("==", 0)),
        "refused": Figure(tally.refused, "runs"),
        "started_over": Figure(tally.started_over, "runs"),
    }


def _case(case: tuple[str, str, tuple[str, ...]], ranks: int) -> _Tally:
    script, calm_place, places = case
    tally = _Tally()
    draw = random.Random(f"{SEED} {script} {calm_place}")
    calm = _Run(script, _Death(calm_place, line=0), ranks)
    if len(calm.weights()) != ranks:
        raise Broken(f"{script} {calm_place} does not train in peace:\n{calm.text}")
    deaths = [_Death(place, draw.choice(STEPS)) for place in places]
    deaths += [_Death(calm_place, line=_line(draw, calm.lines)) for _ in range(MOMENTS)]
    deaths += [_Death(calm_place, moment_s=draw.uniform(0, calm.trained_s)) for _ in range(MOMENTS)]
    for death in deaths:
        run = _Run(script, death, ranks)
        over = "all ranks start over" in run.text
        tally.kills += run.killed or run.replaced()
        tally.failed += run.code != 0
        tally.started_over += over
        tally.refused += over and _BEFORE in run.text.partition("died")[0]
        if run.code == 0 and run.weights() != calm.weights():
            tally.wrong.append(f"{script} {death}")
            print(f"wrong: {script} {death}\n{run.text}", file=sys.stderr, flush=True)
    tally.cases, tally.deaths = 1, len(deaths)
    said = f"{len(deaths)} kills, {tally.started_over} started over, {len(tally.wrong)} wrong"
    print(f"{script} {calm_place}: {said}", file=sys.stderr, flush=True)
    return tally


def _line(draw: random.Random, lines: list[str]) -> int:
    """Draw a file, one of its repeated lines, and one run of that line, each evenly: most lines that run are in an
    optimizer or run only once."""
    files: dict[str, dict[str, list[int]]] = {}
    for number, line in enumerate(lines, 1):
        files.setdefault(line.partition(":")[0], {}).setdefault(line, []).append(number)
    repeated = [[times for times in found.values() if len(times) > 1] for found in files.values()]
    return draw.choice(draw.choice(draw.choice([times for times in repeated if times])))
