"""What a job's terminal shows at the default level when a rank dies: who, why, what it cost, and nothing that misleads.

Each test runs a whole job, in which a rank is killed. Other tests check whether the repair itself is right.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.launched import Launched, wait_until
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.slow

Start = Callable[..., AbstractContextManager[Launched]]
HEAL = Path(__file__).parent.parent / "train" / "workers" / "heal_ddp.py"
PLAIN = """
import os, signal, sys, time
os.write(1, b"up\\n")
import torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weight], 0.1)
go = torch.zeros(1)
while not go.item():
    go = torch.tensor([float(os.path.exists("go"))])
    dist.all_reduce(go)
    if os.environ["RANK"] == "1" and os.path.exists("die") and not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    if "update" in sys.argv:
        weight.grad = torch.ones(1)
        optimizer.step()
    time.sleep(0.02)
dist.destroy_process_group()
"""
"""A loop without a session. With "update" its optimizer steps, and taskd sees the steps; otherwise not."""
TOGETHER = """
import os, sys, torch, torch.distributed as dist, taskd
dist.init_process_group("gloo")
os.write(1, b"begin\\n")
model = torch.nn.Linear(1, 1)
session = taskd.session()
session.register(model=model, optimizer=torch.optim.SGD(model.parameters(), 0.1))
for step in session.steps([torch.ones(1)] * 9):
    with step as batch:
        dist.all_reduce(batch)
        if step.number == 4 and not step.rehearsal:
            sys.exit(0)
"""
QUITS = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(9):
    if step == 4 and dist.get_rank() == 1:
        sys.exit(0)
    dist.all_reduce(torch.ones(1))
"""
VANISHES = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, weight = dist.get_rank(), torch.nn.Parameter(torch.zeros(1 << int(os.environ["SIZE"])))
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(9):
    if step == 5 and rank == 1:
        os._exit(0)
    weight.grad = torch.ones_like(weight)
    dist.all_reduce(weight.grad)
    optimizer.step()
"""
"""One rank ends without a farewell while the others wait for it. Each of the others has dialled it or was dialled."""
SESSION_QUITS = """
import sys, torch, torch.distributed as dist, taskd
dist.init_process_group("gloo")
model = torch.nn.Linear(2, 2)
session = taskd.session()
session.register(model=model)
try:
    for step in session.steps(range(9)):
        with step:
            if step.number == 4 and dist.get_rank() == 1:
                sys.exit(0)
            dist.all_reduce(torch.ones(1))
except RuntimeError as error:
    print(f"raised {type(error).__name__}\\n", end="", flush=True)  # in one piece: others write lines, too
"""
OVER = "all ranks start over"


@pytest.fixture
def start(tmp_path: Path, free_port: Callable[[], int]) -> Start:
    """Run taskd-run with these words at the default level, in the test's folder, which holds plain.py."""
    (tmp_path / "plain.py").write_text(PLAIN)

    @contextmanager
    def run(*words: str, nodes: Sequence[Sequence[str]] = ((),), **variables: str) -> Iterator[Launched]:
        env = {"TASKD_STD_LOG_LEVEL": None, **variables}
        with Launched(tmp_path, free_port(), *words, nodes=nodes, env=env, warm=True) as launched:
            yield launched

    return run


def kill_in_step(launched: Launched, step: int) -> None:
    """Wait until all ranks have reached this step in their training, and then let rank 1 kill itself."""

    def trains() -> bool:
        facts = launched.ask("status")
        rows = facts["ranks"] if facts else []
        return bool(rows) and all(row["state"] == "alive" and row["step"] >= step for row in rows)

    wait_until(trains, f"all ranks in step {step}")
    (launched.folder / "die").touch()


def said_of_the_restart(launched: Launched) -> list[str]:
    """Return the lines about the restart. Nothing else may look like an error or say that the job was healed."""
    assert "refused" not in launched.text and "healed" not in launched.text, launched.text
    assert "goes on as incarnation" not in launched.text, launched.text
    found = [line for line in launched.lines if OVER in line]
    for line in found:
        for words in (
            "rank 1 died (SIGKILL) on node ",
            " done again: from the script's own checkpoint if it takes one up, else from step 0.",
            "Restarts left for rank 1: 2 of 3",
            "`for step in session.steps(loader):`",
        ):
            assert words in line, launched.text
    return found


def test_a_plain_script_does_not_start_over_in_silence(start: Start) -> None:
    with start("--nproc-per-node", "2", "plain.py", "update") as launched:
        kill_in_step(launched, 3)
        launched.wait_for_line(OVER)
        wait_until(lambda: (launched.ask("incidents", "1") or {}).get("closed_wall_ns"), "the incident's end")
        incident, status = launched.ask("incidents", "1"), launched.ask("status")
        assert (incident["strategy"], incident["outcome"]) == ("respawn", "started over"), incident
        assert any("Restarts left for rank 1" in note for note in incident["notes"]), incident
        assert status["incidents"]["started_over"] == 1, status
        lost = incident["steps_lost"]
        assert status["incidents"]["steps_lost"] == lost >= 3, (status, incident)
        (launched.folder / "go").touch()
        launched.end()
    (line,) = said_of_the_restart(launched)
    assert line.startswith("taskd[launcher]: all ranks start over: ") and f". {lost} steps are done again: " in line, (
        line
    )
    assert "its loop does not run over taskd.session().steps()" in line, line
    over, end = (line for line in launched.lines if line.startswith("taskd[manager]: "))
    cost = f"{lost} steps lost, less what the script took up from its own checkpoint"
    told = rf": started over in \d+ ms, {cost}: rank 1 died \(SIGKILL\) on node node-0 \(every rank has done its first"
    assert re.search(told, over), over
    assert end == f"taskd[manager]: this job has started over 1 time: {cost}", end


def test_a_script_whose_steps_nobody_sees_says_so_too(start: Start, free_port: Callable[[], int]) -> None:
    """Without an optimizer that steps, there is nothing to count. Each node says so once."""
    port = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    nodes = [["--nnodes", "2", "--node-rank", str(rank), *port] for rank in (0, 1)]
    with start("--nproc-per-node", "1", "plain.py", nodes=nodes) as launched:
        kill_in_step(launched, -1)
        wait_until(lambda: launched.text.count(OVER) == 2, "the word of both nodes")
        (launched.folder / "go").touch()
        launched.end()
    found = said_of_the_restart(launched)
    assert len(found) == 2 and len(set(found)) == 1, launched.text
    assert "before any step was seen to be done" in found[0], found
    assert "this job has started over 1 time: no finished step was seen" in launched.text, launched.text


def test_a_heal_in_place_is_one_line(start: Start, tmp_path: Path) -> None:
    words = [str(HEAL), "--folder", str(tmp_path), "--steps", "12", "--kills", "1:5:backward"]
    with start("--nproc-per-node", "2", *words) as launched:
        launched.end()
    found = [line for line in launched.lines if line.startswith("taskd[")]
    assert len(found) == 1, launched.text
    said = r"^taskd\[manager\]: rank 1 died \(SIGKILL\) on node node-0; .* healed in \d+ ms, 0 steps lost"
    assert re.search(said, found[0]), launched.text
    assert os.path.exists(tmp_path / "1-5-backward")


def test_a_rank_that_leaves_inside_a_step_has_died(start: Start, tmp_path: Path) -> None:
    """Its exit code is 0, and the others wait for it in a collective."""
    words = [str(HEAL), "--folder", str(tmp_path), "--steps", "12", "--kills", "1:5:backward:leave"]
    with start("--nproc-per-node", "2", *words) as launched:
        launched.end()
    assert launched.text.count("begin 0") == 1 and launched.text.count("begin 1") == 2, launched.text
    found = [line for line in launched.lines if line.startswith("taskd[")]
    assert len(found) == 1 and "0 steps lost" in found[0], launched.text
    said = "rank 1 died (left with exit code 0 in the middle of step 5) on node node-0; it was replaced"
    assert said in found[0] and "in good order" not in launched.text, launched.text


def test_ranks_that_all_leave_inside_a_step_have_ended(start: Start, tmp_path: Path) -> None:
    (tmp_path / "together.py").write_text(TOGETHER)
    with start("--nproc-per-node", "2", "together.py") as launched:
        launched.end()
    assert launched.text.count("begin") == 2 and OVER not in launched.text, launched.text


def test_a_rank_that_leaves_a_session_early_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    """A rank in a collective with it gets the error at once, as under torchrun, and may handle it."""
    (tmp_path / "quits.py").write_text(SESSION_QUITS)
    with start(
        "--nproc-per-node", "2", "quits.py", TASKD_RECOVER_UNREPAIRED_MS=str(int(PATIENCE_S * 2000))
    ) as launched:
        launched.end()
    assert launched.said("raised") == ["DistBackendError"], launched.text


def test_a_rank_that_leaves_a_plain_script_early_ends_the_job(start: Start, tmp_path: Path) -> None:
    """Nothing can repair that, and no rank waits for a repair: such a wait would take longer than the test."""
    (tmp_path / "quits.py").write_text(QUITS)
    with start(
        "--nproc-per-node", "2", "quits.py", TASKD_RECOVER_UNREPAIRED_MS=str(int(PATIENCE_S * 2000))
    ) as launched:
        launched.end(1)
    (line,) = [line for line in launched.lines if line.startswith("taskd[launcher]: the job ends: ")]
    assert "rank 0 died (exit code 1: DistBackendError: " in line and OVER not in launched.text, launched.text
    assert "rank 1 has left with exit code 0 before and can repair nothing: exit" in line, launched.text


@pytest.mark.parametrize("size", [4, 20])
def test_a_rank_that_vanishes_from_a_plain_script_ends_the_job(start: Start, tmp_path: Path, size: int) -> None:
    """Its node has seen how it ended, so no rank waits for its network. Such a wait would take longer than the test."""
    (tmp_path / "vanishes.py").write_text(VANISHES)
    waits = {
        "TASKD_RETRY": "MaxCnt:10, HoldTime:60000, IntervalTime:60000",
        "TASKD_RECOVER_UNREPAIRED_MS": str(int(PATIENCE_S * 2000)),
    }
    with start("--nproc-per-node", "3", "vanishes.py", SIZE=str(size), **waits) as launched:
        launched.end(1)
    (line,) = [line for line in launched.lines if line.startswith("taskd[launcher]: the job ends: ")]
    assert re.search(r"ranks? [02].* died \(exit code 1: DistBackendError: ", line), launched.text
    assert "rank 1 has left with exit code 0 before and can repair nothing: exit" in line, launched.text
    lost = r"rank 1 \(.*\) is lost: it has left: its process has ended with exit code 0"
    assert re.search(lost, launched.text), launched.text
    assert "no rail came back" not in launched.text, launched.text
    assert OVER not in launched.text and "under taskd-run" not in launched.text, launched.text
