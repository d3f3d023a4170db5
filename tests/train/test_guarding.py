"""`start_taskd_worker()` with PROCESS_RECOVER=on guards the existing groups, and the training result stays the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def step(seed):
    torch.manual_seed(seed + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(2, 4)).square().sum().backward()
    optimizer.step()
step(1)
import taskd
from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker
assert init_taskd_worker(dist.get_rank(), 5000, "pt")
start_taskd_worker()
from taskd.comm import guard
from tests.patience import PATIENCE_S
step(2); step(3)
total = sum(p.detach().double().sum() for p in model.parameters())
# In one write: with PYTHONUNBUFFERED, print() writes word by word, and the ranks' lines would run into each other.
os.write(1, f"result {dist.get_backend()} {len(guard.groups())} {float(total):.17g} {taskd.guard()}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_live_groups_are_guarded_and_the_result_is_the_same(tmp_path: Path, free_port: Callable[[], int]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    results = {}
    for recover in ("off", "on"):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command += ["--master-port", str(free_port()), str(script)]
        environment = os.environ | {
            "PROCESS_RECOVER": recover,
            "PYTHONPATH": str(ROOT),
            "TASKD_JOB_ID": f"guarding-{recover}",
            "TASKD_MANAGER_PORT": str(free_port()),
            "TASKD_WORKER_REGISTER_WAIT_MS": "200",
            "TASKD_AGENT_LINGER_MS": "200",
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0, done.stderr
        results[recover] = sorted(line for line in done.stdout.splitlines() if line.startswith("result"))
    sums = {recover: [line.split()[3] for line in lines] for recover, lines in results.items()}
    assert sums["on"] == sums["off"]
    assert [line.split()[1:3] for line in results["off"]] == [["gloo", "0"]] * 2
    assert [line.split()[1:3] for line in results["on"]] == [["gloo", "1"]] * 2
    assert all(line.endswith("[]") for line in results["on"]), "what is guarded is not guarded twice"
