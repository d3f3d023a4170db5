"""Runs taskd-run as a user does, on one or several nodes of this machine, and reads its output.

Everything is real: launchers, standby, manager, workers. In tests that are not about the start of a job, launchers and
standbys are forked from a process that has imported torch (warm_launcher.py). A run has its own job name, folder and
manager port. Questions about it go through the operators' line. It judges nothing but exit codes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import forked, verdicts
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
WARM = Path(__file__).with_name("warm_launcher.py")
BOUNDED = """
import json, os, resource, sys
for number, bound in json.loads(sys.argv[1]):
    resource.setrlimit(number, (bound, resource.getrlimit(number)[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""
"""A program that lowers its own limits and then becomes the program in its other arguments."""


class Launched:
    """One job. A context manager: it kills at its end what still runs."""

    def __init__(
        self,
        folder: Path,
        port: int,
        *words: str,
        nodes: Sequence[Sequence[str]] = ((),),
        env: Mapping[str, str | None] | None = None,
        job: str = "job",
        bounds: Mapping[int, int] | None = None,
        warm: bool = False,
        program: Sequence[str] = ("-m", "taskd.run"),
        within: Sequence[Sequence[str]] = (),
    ) -> None:
        """`words` follow each node's own words: options, script, arguments. `bounds`: resource limits of the launchers
        and all that they start, by number of the resource; this process keeps its own. `warm`: the test is not about
        how they start, so they need not import torch. `program`: what Python runs as the launcher. `within`: for each
        node, the command that runs its launcher in another place, such as a network namespace; the first place has the
        manager."""
        self.folder, self.warm, self.program, self.within = folder, warm, program, within
        self.job = f"{job}-{os.getpid()}"  # agents' names are unique in the system, and tests may run at the same time
        self.bounds = dict(bounds or {})
        self.unlike = False  # whether its ranks come to hold different things; otherwise that is a wrong result
        merged: dict[str, str | None] = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TASKD_JOB_ID": self.job,
            "TASKD_MANAGER_PORT": str(port),
            "TASKD_STD_LOG_LEVEL": "info",
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        self.environment = {name: value for name, value in merged.items() if value is not None}
        self.stands = False  # whether the test makes a rank stand still; otherwise no hang may be reported
        self.lines: list[str] = []
        self.launchers: list[subprocess.Popen[str] | forked.Forked] = []
        self._readers: list[threading.Thread] = []
        self._heard = threading.Condition()
        for own in nodes:
            self.launch(*own, *words)

    def launch(self, *words: str) -> subprocess.Popen[str] | forked.Forked:
        """Start the launcher of one more node."""
        launcher = self._forked(*words) if self.warm else self._started(*words)
        reader = threading.Thread(target=self._read, args=(launcher,))
        self.launchers.append(launcher)
        self._readers.append(reader)
        reader.start()
        return launcher

    def _forked(self, *words: str) -> forked.Forked:
        assert not self.bounds, "a forked process has the bounds of the one it was forked from"
        return forked.start([str(WARM), *words], self.environment, self.folder, len(self.launchers))

    def _started(self, *words: str) -> subprocess.Popen[str]:
        within = self.within[len(self.launchers)] if self.within else ()
        command = [*within, sys.executable, *self.program, *words]
        if self.bounds:
            command = [sys.executable, "-c", BOUNDED, json.dumps(list(self.bounds.items())), *command]
        return subprocess.Popen(
            command,
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def _read(self, launcher: subprocess.Popen[str] | forked.Forked) -> None:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            with self._heard:
                self.lines.append(line.rstrip("\n"))
                self._heard.notify_all()

    def __enter__(self) -> Launched:
        return self

    def __exit__(self, *_: object) -> None:
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.kill()
        for launcher, reader in zip(self.launchers, self._readers, strict=True):
            launcher.wait()
            reader.join()
            assert launcher.stdout is not None
            launcher.stdout.close()

    # ---- its output -------------------------------------------------------------------------------------------

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for_line(self, part: str, patience_s: float = PATIENCE_S) -> str:
        """Return the first line with this part. If none comes, fail the test and show the whole output."""
        with self._heard:
            found = self._heard.wait_for(lambda: next((x for x in self.lines if part in x), None), patience_s)
        if not found:
            pytest.fail(f"nobody said {part!r}:\n{self.text}", pytrace=False)
        return found

    def end(self, code: int | None = 0, patience_s: float = PATIENCE_S) -> list[int]:
        """Wait for all launchers. Fail the test if one ends with another exit code (None: any code is right)."""
        codes = []
        try:
            for launcher in self.launchers:
                codes.append(launcher.wait(patience_s))
        except subprocess.TimeoutExpired:
            shown = subprocess.run(
                [sys.executable, "-m", "taskd", "status"], env=self.environment, capture_output=True, text=True
            ).stdout
            pytest.fail(f"the job does not end:\n{self.text}\n{shown}", pytrace=False)
        for reader in self._readers:
            reader.join()
        if not self.unlike:
            verdicts.no_difference(self.text)
        if not self.stands:
            verdicts.no_hang(self.text)
        if code is not None:
            verdicts.exit_codes(codes, code, self.text)
        return codes

    def said(self, word: str) -> list[str]:
        """Return what follows this word in each line that begins with it."""
        return [line[len(word) :].strip() for line in self.lines if line.startswith(word)]

    # ---- the operators' line ----------------------------------------------------------------------------------

    def ask(self, topic: str, *words: str) -> Any:
        """Return the answer of `taskd TOPIC --json`, or None while there is no manager."""
        done = subprocess.run(
            [*next(iter(self.within), ()), sys.executable, "-m", "taskd", topic, "--json", *words],
            env=self.environment,
            capture_output=True,
            text=True,
        )
        return json.loads(done.stdout) if done.returncode == 0 else None

    def pids(self) -> dict[int, int]:
        """Return the pids of the living ranks, by rank."""
        facts = self.ask("status") or {"ranks": []}
        return {row["rank"]: row["pid"] for row in facts["ranks"] if row["state"] == "alive"}

    def pid(self, rank: int) -> int:
        """Return the pid of a rank, once it lives."""
        found: int = wait_until(lambda: self.pids().get(rank), f"rank {rank} alive")
        return found

    def kill(self, rank: int, number: signal.Signals = signal.SIGKILL) -> int:
        pid = self.pid(rank)
        os.kill(pid, number)
        return pid


def wait_until(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Look at the visible state of other processes until the condition holds."""
    deadline = time.monotonic() + patience_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.02)
    return found


def children(pid: int) -> list[int]:
    """Return the living children of a process."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] not in "ZX":
            found.append(int(name))
    return found
