"""Policies in whole jobs: `taskd-run --policy FILE`, from the exit code of a rank to the end of the launcher."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.launched import Launched, wait_until

pytestmark = pytest.mark.slow

SCRIPT = """
import hashlib, os, sys
import torch, torch.distributed as dist, taskd
os.write(1, f"begins {os.environ['RANK']}\\n".encode())
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
session = taskd.session()
session.register(model=model, optimizer=optimizer)
for step in session.steps([torch.ones(1, 2)] * 12):
    with step as batch:
        if step.number == 6 and rank == 1 and not step.rehearsal and not os.path.exists("struck"):
            open("struck", "x").close()
            if "wait" in sys.argv:
                os.write(1, b"waits\\n")
                while not os.path.exists("go"):
                    pass
            os._exit(int(sys.argv[1]))
        optimizer.zero_grad()
        loss = model(batch).square().sum()
        loss.backward()
        for one in model.parameters():
            dist.all_reduce(one.grad)
        optimizer.step()
bits = hashlib.sha256(b"".join(one.detach().numpy().tobytes() for one in model.parameters())).hexdigest()
os.write(1, f"done {rank} {bits}\\n".encode())
"""
SIDE = """
import os, time
rank = os.environ["RANK"]
os.write(1, f"{'leaves' if rank == '0' else 'runs'} {rank}\\n".encode())
while rank == "1" or not os.path.exists("go"):
    time.sleep(0.02)  # until the test lets rank 0 go, or the launcher ends rank 1
"""
Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Start:
    """Run a job of two ranks under this policy. Rank 1 exits with `code` in its seventh step, once."""
    (tmp_path / "train.py").write_text(SCRIPT)

    @contextmanager
    def run(policy: str, code: int, *words: str, **variables: str | None) -> Iterator[Launched]:
        (tmp_path / "policy.yaml").write_text(policy)
        given = () if "TASKD_POLICY" in variables else ("--policy", "policy.yaml")
        command = (*given, "--nproc-per-node", "2", "train.py", str(code), *words)
        with Launched(tmp_path, free_port(), *command, env=variables, warm=True) as launched:
            yield launched

    return run


def rule(*lines: str) -> str:
    return "faultTolerantPolicy:\n  - " + "\n    ".join(lines) + "\n"


def test_a_code_that_is_never_started_again_ends_the_job_with_it(start: Start) -> None:
    with start(rule("exitCodes: 77", "restartPolicy: Never"), 77) as launched:
        launched.end(77)
    said = "policy.yaml line 2 (exitCodes: 77) says restartPolicy Never: exit"
    assert f"the job ends: rank 1 died (exit code 77) on node node-0; {said}" in launched.text, launched.text
    assert "exitcode  : 77 " in launched.text[launched.text.index("Root Cause") :], "torchrun's own report stays"
    assert sorted(launched.said("begins")) == ["0", "1"] and not launched.said("done")


def test_all_start_over_where_the_policy_says_so(start: Start) -> None:
    with start(rule("exitCodes: 70-79", "restartScope: All"), 77) as launched:
        launched.end()
    assert sorted(launched.said("begins")) == ["0", "0", "1", "1"], launched.text
    assert "policy.yaml line 2 (exitCodes: 70-79) says restartScope All" in launched.text
    assert "1 time" in launched.text and len({*(line.split()[1] for line in launched.said("done"))}) == 1


@pytest.mark.parametrize("code", [77, 3])
def test_what_no_rule_names_heals_in_place(start: Start, code: int) -> None:
    """And so does what a rule lets start again in the cheapest way."""
    with start(rule("exitCodes: 77", "restartPolicy: ExitCode"), code, TASKD_POLICY="policy.yaml") as launched:
        launched.end()
    assert sorted(launched.said("begins")) == ["0", "1", "1"], launched.text
    assert "0 steps lost" in launched.text and len({*(line.split()[1] for line in launched.said("done"))}) == 1


def test_a_policy_with_a_mistake_starts_no_job(start: Start) -> None:
    with start(rule("exitCodes: 77", "restartPolicy: Nevr"), 77) as launched:
        launched.end(1)
    assert "policy.yaml line 3: 'Nevr' is no restartPolicy; did you mean Never?" in launched.text
    assert not launched.said("begins") and "Traceback" not in launched.text


def test_a_manager_that_is_started_again_has_the_policy_that_the_job_began_with(start: Start, tmp_path: Path) -> None:
    """Even if the file has changed meanwhile, or is gone."""
    with start(rule("exitCodes: 77", "restartPolicy: Never"), 77, "wait") as launched:
        launched.wait_for_line("waits")
        (tmp_path / "policy.yaml").unlink()
        manager = wait_until(lambda: (launched.ask("status") or {}).get("manager"), "the manager's answer")
        os.kill(manager["pid"], signal.SIGKILL)
        wait_until(lambda: launched.ask("status"), "a manager again")
        (tmp_path / "go").touch()
        launched.end(77)
    assert "policy.yaml line 2 (exitCodes: 77) says restartPolicy Never" in launched.text, launched.text


def test_the_job_is_complete_when_rank_0_has_left(start: Start, tmp_path: Path) -> None:
    """Rank 1 would run on for a long time. It is ended, and that is no failure."""
    (tmp_path / "train.py").write_text(SIDE)
    with start("completePolicy: Rank0\n", 0) as launched:
        launched.wait_for_line("runs")
        (tmp_path / "go").touch()
        launched.end()
    assert launched.said("leaves") == ["0"]
