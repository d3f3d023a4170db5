"""The drop-in names in a training process: bad input, order of calls, and unchanged scripts under plain torchrun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed import TCPStore

from taskd.api import (
    destroy_taskd_worker,
    init_taskd_agent,
    init_taskd_worker,
    register_func,
    start_taskd_agent,
    start_taskd_worker,
)
from taskd.worker import presence
from tests.patience import PATIENCE_S
from tests.shell.manager_process import ROOT, wait_for
from tests.shell.plane import Plane


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, free_port):
    """A job of 4 ranks without a manager, whose agent ends soon."""
    monkeypatch.setenv("TASKD_JOB_ID", f"dropin-{os.getpid()}")
    monkeypatch.setenv("TASKD_NODE", "here")
    monkeypatch.setenv("TASKD_MANAGER_HOST", "127.0.0.1")
    monkeypatch.setenv("TASKD_MANAGER_PORT", str(free_port()))
    monkeypatch.setenv("TASKD_WORKER_REGISTER_WAIT_MS", "300")
    monkeypatch.setenv("TASKD_AGENT_LINGER_MS", "100")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    yield
    there = presence.current()
    if there is not None:
        presence.establish(None)
        there.end("the test has ended")


@pytest.mark.parametrize(
    "arguments",
    [
        ("0",),
        (None,),
        (1.0,),
        (True,),
        (-1,),
        (4,),
        (10**30,),
        (0, "5000"),
        (0, -1),
        (0, 1.5),
        (0, True),
        (0, 5000, "tf"),
        (0, 5000, None),
        (0, 5000, ["pt"]),
        (),
        (0, 1, "pt", "more"),
    ],
)
def test_bad_arguments_are_false_and_never_raise(job, arguments) -> None:
    assert init_taskd_worker(*arguments) is False
    assert presence.current() is None
    assert start_taskd_worker() is False


def test_a_bad_configuration_is_false(job, monkeypatch) -> None:
    monkeypatch.setenv("TASKD_MANAGER_PORT", "many")
    assert init_taskd_worker(0) is False


def test_the_order_of_calls(job) -> None:
    assert start_taskd_worker() is False
    assert destroy_taskd_worker() is False
    assert init_taskd_worker(1) is True
    assert init_taskd_worker(1) is True
    assert init_taskd_worker(2) is True  # not started yet: the last call counts
    assert start_taskd_worker() is False  # there is no manager
    assert init_taskd_worker(3) is False  # it is already rank 2
    assert destroy_taskd_worker() is True
    assert destroy_taskd_worker() is False
    assert init_taskd_worker(3) is True
    assert destroy_taskd_worker() is True


def test_numbers_of_libraries_are_ranks(job) -> None:
    import numpy

    assert init_taskd_worker(numpy.int64(1)) is True
    there = presence.current()
    assert there is not None and type(there.identity.rank) is int and there.identity.rank == 1


# ---- the agent's names --------------------------------------------------------------------------------------------


class Elastic:
    """The object that a launcher passes: its run() trains."""

    _worker_group = "the group"

    def __init__(self, result: object) -> None:
        self.result = result

    def run(self) -> object:
        if isinstance(self.result, BaseException):
            raise self.result
        return self.result


@pytest.fixture
def no_agent_yet(monkeypatch: pytest.MonkeyPatch):
    from taskd.api import taskd_agent_api

    monkeypatch.setattr(taskd_agent_api, "_agent", None)
    monkeypatch.setattr(taskd_agent_api, "_functions", {})


def test_an_elastic_agent_s_result_is_handed_through(job, no_agent_yet) -> None:
    result = object()
    assert start_taskd_agent() is False
    assert init_taskd_agent(
        {"Framework": "PyTorch", "UpstreamAddr": "127.0.0.1", "UpstreamPort": "9", "ServerRank": 0}, Elastic(result)
    )
    assert start_taskd_agent() is result
    assert init_taskd_agent({}, Elastic(KeyError("the launcher's own")))
    with pytest.raises(KeyError):
        start_taskd_agent()
    assert init_taskd_agent({}, Elastic(1))
    assert start_taskd_agent() == 1


@pytest.mark.parametrize(
    ("config", "elastic"),
    [
        (None, None),
        ({"Framework": "Other"}, None),
        ({"UpstreamPort": -1}, None),
        ({"ServerRank": "first"}, None),
        ({}, object()),
        ({}, Elastic),
    ],
)
def test_bad_agents_are_false(job, no_agent_yet, config, elastic) -> None:
    assert init_taskd_agent(config, elastic) is False
    assert start_taskd_agent() is False


def test_operators(no_agent_yet) -> None:
    for operator in ("KILL_WORKER", "START_ALL_WORKER", "MONITOR", "RESTART", "START_WORKER_LIST"):
        assert register_func(operator, print) is True
    assert register_func("OTHER", print) is False
    assert register_func("KILL_WORKER", "print") is False
    assert register_func(None, print) is False


# ---- plain torchrun -----------------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def note(name, value):
    path = f"{os.environ['OUT']}/{name}"
    with open(path + ".new", "w") as file:
        file.write(str(value))
    os.replace(path + ".new", path)


dist.init_process_group("gloo")
rank = dist.get_rank()
from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker
assert init_taskd_worker(rank, 5000, "pt") is True
note(f"started-{rank}", start_taskd_worker())
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
stop = torch.zeros(1)
step = 0
while not stop.item():
    optimizer.zero_grad()
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    step += 1
    time.sleep(0.01)
    stop.fill_(float(os.path.exists(f"{os.environ['OUT']}/stop")))
    dist.all_reduce(stop, dist.ReduceOp.MAX)
note(f"steps-{rank}", step)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("given", ["", "ab" * 32], ids=["made", "given"])
def test_an_unchanged_script_under_two_torchruns(
    tmp_path: Path, run_dir: Path, free_port, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """Two nodes run on one machine. The second one finds neither the key nor the manager's files. Its key comes
    through the store, which does not reveal it to readers, or was given to all nodes."""
    if given:
        monkeypatch.setenv("TASKD_KEY", given)
    (tmp_path / "train.py").write_text(SCRIPT)
    rendezvous = free_port()
    with Plane(run_dir, free_port(), job=f"torchrun-{os.getpid()}") as plane:
        plane.manager.start()
        launchers = []
        for node in (0, 1):
            environment = {name: value for name, value in plane.environment.items() if value is not None}
            environment |= {"OUT": str(tmp_path), "OMP_NUM_THREADS": "1"}
            if node == 1:
                environment["TASKD_RUN_DIR"] = str(tmp_path / "another-host")
            command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2"]
            command += [
                f"--node-rank={node}",
                "--master-addr=127.0.0.1",
                f"--master-port={rendezvous}",
                str(tmp_path / "train.py"),
            ]
            with (tmp_path / f"torchrun-{node}.log").open("wb") as log:
                launchers.append(
                    subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
                )

        def logs() -> str:
            return "\n".join((tmp_path / f"torchrun-{node}.log").read_text() for node in (0, 1))

        try:
            wait_for(
                lambda: (
                    all((tmp_path / f"started-{rank}").exists() for rank in range(4))
                    or any(launcher.poll() is not None for launcher in launchers)
                ),
                "four ranks that have started taskd",
                120,
            )
            started = [(tmp_path / f"started-{rank}").read_text() for rank in range(4)]
            assert started == ["True"] * 4, logs()
            assert [plane.rank(rank)["node"] for rank in range(4)] == ["node-0", "node-0", "node-1", "node-1"]
            store = TCPStore("127.0.0.1", rendezvous, is_master=False)
            names = store.list_keys()
            values = [bytes(store.get(name)) for name in names]
            secret = given or (plane.manager.folder / "key").read_text().strip()
            assert any(name.endswith("taskd/give/1") for name in names) == (not given), names
            assert any(value.startswith(b"given:" if given else b"ask:") for value in values), names
            assert not any(form in value for value in values for form in (secret.encode(), bytes.fromhex(secret)))
            wait_for(
                lambda: all(plane.rank(rank)["step"] > 3 for rank in range(4)), "steps counted by torch's own hooks"
            )
            agents = [plane.agent_pid(f"node-{node}") for node in (0, 1)]
            os.kill(agents[1], signal.SIGKILL)
            wait_for(lambda: plane.agent_pid("node-1") not in (0, agents[1]), "another agent on node-1")
            step = plane.rank(3)["step"]
            wait_for(lambda: plane.rank(3)["step"] > step + 3, "steps that go on")
            (tmp_path / "stop").touch()
            assert [launcher.wait(PATIENCE_S) for launcher in launchers] == [0, 0], logs()
            assert plane.manager.process is not None and plane.manager.process.wait(PATIENCE_S) == 0  # its job is over
            assert plane.manager.said().count("ended in good order\n") >= 4, plane.manager.said()
            assert len({(tmp_path / f"steps-{rank}").read_text() for rank in range(4)}) == 1
            wait_for(lambda: not plane.agent_pid("node-0") and not plane.agent_pid("node-1"), "the agents' end")
        finally:
            for launcher in launchers:
                if launcher.poll() is None:
                    launcher.terminate()
                    launcher.wait(PATIENCE_S)
