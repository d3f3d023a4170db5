"""The launcher or the manager is stopped while a rank is dead. In the end all is as if nothing had happened.

Only the launcher can see the death or start another process, so it does not matter how long the launcher is stopped.
The stories launcher_stopped*.txt tell the manager's part, in which half a minute passes. A manager that is stopped is
replaced, and its successor decides.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import Launched
from tests.verdicts import same_bits

SCRIPT = Path(__file__).with_name("stopped.py")
NEVER = "-1"
FAILS_SOON = {"STOPS": "launcher", "TASKD_RETRY": "off", "TASKD_RECOVER_UNREPAIRED_MS": "5000"}
"""A failure is known at once. If nobody repairs it, it is held for 5 s, which is longer than a manager settles."""


def words(folder: Path, at: str) -> list[str]:
    return ["--nproc-per-node", "2", str(SCRIPT), "--folder", str(folder), "--place", "backward", "--at", at]


@pytest.mark.slow
def test_survivors_wait_for_a_launcher_that_is_stopped(tmp_path: Path, free_port: Callable[[], int]) -> None:
    with Launched(tmp_path, free_port(), *words(tmp_path, NEVER), env=FAILS_SOON, job="calm", warm=True) as calm:
        calm.end()
    with Launched(tmp_path, free_port(), *words(tmp_path, "3"), env=FAILS_SOON, job="stopped", warm=True) as job:
        job.wait_for_line(" has failed")  # the error is raised in the script soon, or held for as long as it takes
        launcher = int(job.said("stops")[0])
        os.kill(launcher, signal.SIGCONT)
        job.end()
    same_bits(sorted(job.said("weights")), sorted(calm.said("weights")), job.text)
    assert job.text.count("begin 0") == 1 and job.text.count("begin 1") == 2, job.text
    assert f"the launcher of this node (process {launcher}) has not run for" in job.text, job.text
    assert "respawn" not in job.text and "nobody repairs it" not in job.text, job.text


@pytest.mark.slow
def test_survivors_wait_for_a_manager_that_is_stopped(tmp_path: Path, free_port: Callable[[], int]) -> None:
    calm, stops = words(tmp_path, NEVER), words(tmp_path, "3")
    with Launched(tmp_path, free_port(), *calm, env={"STOPS": "manager"}, job="calm", warm=True) as job:
        job.end()
        expected = sorted(job.said("weights"))
    with Launched(tmp_path, free_port(), *stops, env={"STOPS": "manager"}, job="stopped", warm=True) as job:
        job.end()
    same_bits(sorted(job.said("weights")), expected, job.text)
    assert job.text.count("begin 0") == 1 and job.text.count("begin 1") == 2, job.text
    assert f"(process {job.said('stops')[0]}) has done nothing for" in job.text, job.text
