"""Runs `taskd check` on several nodes of this machine, as users do on theirs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.patience import PATIENCE_S

PLANTS = Path(__file__).parent / "plants"
"""For each fault of a probe, a folder whose sitecustomize.py brings it about."""


class Checked:
    """What a check of some nodes has said."""

    def __init__(self, report: Mapping[str, Any], said: Mapping[int, str], codes: Mapping[int, int]) -> None:
        self.report, self.said, self.codes = report, said, codes

    @property
    def findings(self) -> list[str]:
        """The finding about each node."""
        return [one["finding"] for one in self.report["nodes"]]

    @property
    def leaving(self) -> list[int]:
        """The nodes that have said that they leave."""
        return [at for at, text in self.said.items() if "The node is down." in text]


Check = Callable[..., Checked]


@pytest.fixture
def check(tmp_path: Path, free_port: Callable[[], int]) -> Check:
    """Return a function that checks so many nodes. `plants`: the faults of some. `within`: for each node, the command
    that runs it on its host. `host`: where node 0 is. `absent`: nodes that never come. `words`: further options."""

    def run(
        nodes: int,
        plants: Mapping[int, str] | None = None,
        within: Sequence[Sequence[str]] = (),
        host: str = "127.0.0.1",
        absent: Sequence[int] = (),
        words: Sequence[str] = (),
    ) -> Checked:
        port = free_port()
        started: dict[int, subprocess.Popen[str]] = {}
        report = tmp_path / "report.json"
        for at in range(nodes):
            if at in absent:
                continue
            paths = [str(ROOT), *([str(PLANTS / (plants or {})[at])] if at in (plants or {}) else [])]
            own = ["--node-rank", str(at), *(["--report", str(report)] if at == 0 else []), *words]
            command = [sys.executable, "-m", "taskd", "check", "--nnodes", str(nodes), "--endpoint", f"{host}:{port}"]
            started[at] = subprocess.Popen(
                [*(within[at] if within else ()), *command, *own],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        try:
            said = {at: process.communicate(timeout=PATIENCE_S)[0] for at, process in started.items()}
        finally:
            for process in started.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
        codes = {at: process.returncode for at, process in started.items()}
        assert report.exists(), said
        return Checked(json.loads(report.read_text()), said, codes)

    return run
