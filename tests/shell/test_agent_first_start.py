"""A launcher knows its first workers before any of them can introduce itself, however fast that worker is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from taskd import config
from taskd.agent.loop import AgentLoop
from taskd.core.effects import Spawn
from taskd.core.messages import WorkerHello
from taskd.core.types import Stage
from taskd.wire import local


class Sleeper:
    """A spawner whose workers do nothing."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []

    def prepared(self) -> bool:
        return True

    def spawn(self, _seat: Spawn) -> int:
        self.processes.append(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]))
        return self.processes[-1].pid

    def end(self, _rank: int, pid: int) -> None:
        os.kill(pid, 9)

    def reap(self, pid: int) -> int | None:
        return next(process.poll() for process in self.processes if process.pid == pid)

    def excuse(self, _pid: int) -> None:
        raise AssertionError("none of them leaves")


def test_who_was_started_is_let_in_before_the_loop_runs(tmp_path: Path) -> None:
    job = f"first-{os.getpid()}"
    settings = config.load(job_id=job, job_run_dir=str(tmp_path))
    listener = local.listen(local.address(job, "node-0"))
    assert listener is not None
    sleeper = Sleeper()
    loop = AgentLoop(settings, "node-0", listener, sleeper, slots=2)
    try:
        loop.start([Spawn(rank, 1, 0, newcomer=False) for rank in range(2)])
        for rank, process in enumerate(sleeper.processes):
            hello = WorkerHello(job, rank, 2, rank, process.pid, 1, "pt", 0, Stage.RUNNING, b"")
            assert loop.core.crew.why_not(hello) == ""
        stranger = WorkerHello(job, 2, 3, 0, os.getpid(), 1, "pt", 0, Stage.RUNNING, b"")
        assert "no process for rank 2" in loop.core.crew.why_not(stranger)
    finally:
        loop.stop("the test is over")
        loop.run()
        for process in sleeper.processes:
            process.kill()
            process.wait()
