"""How many files a launcher may open: too few are refused at the start, and not later, when a worker is replaced."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.launched import ROOT
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

DIES = """
import os, signal, torch, torch.distributed as dist, taskd
from pathlib import Path
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
session = taskd.session()
session.register(model=model)
for step in session.steps(range(3)):
    with step:
        if step.number == 1 and dist.get_rank() == 1 and not Path("dead").exists():
            Path("dead").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
os.write(1, f"done {dist.get_rank()}\\n".encode())
"""


def ends(folder: Path, port: int, limit: str) -> tuple[int, str]:
    """Run a job of two ranks with this `ulimit`; return its exit code and its output."""
    (folder / "dies.py").write_text(DIES)
    words = f"ulimit {limit} && exec {sys.executable} -m taskd.run --nproc-per-node 2 dies.py"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TASKD_JOB_ID": f"files-{os.getpid()}-{port}",
        "TASKD_MANAGER_PORT": str(port),
        "TASKD_STD_LOG_LEVEL": "info",
    }
    job = subprocess.run(
        ["bash", "-c", words], cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
    )
    return job.returncode, job.stdout + job.stderr


def test_too_few_are_refused_at_the_start(tmp_path: Path, free_port: Callable[[], int]) -> None:
    code, text = ends(tmp_path, free_port(), "-n 64")
    assert code == 1 and "only 64 files may be open (ulimit -n)" in text and "needs 118" in text, text
    assert "Traceback" not in text and not (tmp_path / "dead").exists(), text


@pytest.mark.parametrize("limit", ["-n 118", "-S -n 64"], ids=["just enough", "more is allowed"])
def test_what_is_enough_is_enough_for_a_repair(tmp_path: Path, free_port: Callable[[], int], limit: str) -> None:
    code, text = ends(tmp_path, free_port(), limit)
    assert (
        code == 0 and len(re.findall(r"^done \d", text, re.M)) == 2 and f"rank 1 died ({signal.SIGKILL.name})" in text
    ), text
