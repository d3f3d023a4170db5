"""Tests forked children that make process groups of their own, while their parent trains: all do what they want.

The parent forks in the middle of an operation and of a wait in its store, with all its threads there. A child that took
over a lock or a count of threads would hang. Real processes run workers/forked_groups.py, which asserts everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.patience import PATIENCE_S
from tests.train.guarded import ROOT, WORKERS

SCRIPT = str(WORKERS / "forked_groups.py")


@pytest.mark.parametrize("inner", ["rail", "gloo"])
def test_under_the_launcher(tmp_path: Path, free_port: Callable[[], int], inner: str) -> None:
    words = ["--nproc-per-node", "2", SCRIPT, str(tmp_path)]
    with Launched(tmp_path, free_port(), *words, env={"TASKD_INNER": inner}, job="forked", warm=True) as job:
        job.end()
    assert sorted(job.said("trained")) == ["0", "1"], job.text


def test_under_torchrun(tmp_path: Path, free_port: Callable[[], int]) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--master-port", str(free_port()), SCRIPT, str(tmp_path), "start"]
    environment = os.environ | {
        "PROCESS_RECOVER": "on",
        "PYTHONPATH": str(ROOT),
        "TASKD_JOB_ID": f"forked-{os.getpid()}",
        "TASKD_MANAGER_PORT": str(free_port()),
        "TASKD_WORKER_REGISTER_WAIT_MS": "200",
        "TASKD_AGENT_LINGER_MS": "200",
    }
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("trained")) == ["trained 0", "trained 1"]
