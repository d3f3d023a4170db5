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
before = {name: value.clone() for name, value in model.state_dict().items()}
step(2); step(3)
plain = sum(p.detach().double().sum() for p in model.parameters())
model.load_state_dict(before)
import taskd
from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker
assert init_taskd_worker(dist.get_rank(), 5000, "pt")
start_taskd_worker()
from taskd.comm import guard
from tests.patience import PATIENCE_S
step(2); step(3)
total = sum(p.detach().double().sum() for p in model.parameters())
# In one write: with PYTHONUNBUFFERED, print() writes word by word, and the ranks' lines would run into each other.
guarded, more = len(guard.groups()), taskd.guard()
os.write(1, f"result {dist.get_backend()} {guarded} {len(more)} {bool(total == plain)}\\n".encode())
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("recover", "guarded"), [("on", "1 0"), ("off", "0 1")])
def test_live_groups_are_guarded_and_the_result_is_the_same(
    tmp_path: Path, free_port: Callable[[], int], recover: str, guarded: str
) -> None:
    """`guarded`: how many groups are guarded, and how many more `taskd.guard()` then guards."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
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
    results = [line for line in done.stdout.splitlines() if line.startswith("result")]
    assert results == [f"result gloo {guarded} True"] * 2
