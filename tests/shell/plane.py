"""A job on one machine, for tests of agent and worker: real workers, the agents that they start, and a real
manager."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from taskd.cli.ask import Asker
from taskd.wire import local
from tests.patience import PATIENCE_S
from tests.ready import readable
from tests.shell.manager_process import ROOT, ManagerProcess, wait_for

TRAINER = Path(__file__).with_name("trainer.py")
LINGER_MS = 300


class Trainer:
    """One training process."""

    def __init__(self, plane: Plane, rank: int, node: str, **variables: str | None) -> None:
        self.rank, self.node = rank, node
        self.log = plane.folder / f"rank-{rank}-{len(plane.trainers)}.log"
        environment = {**plane.environment, "RANK": str(rank), "WORLD_SIZE": str(plane.ranks), "TASKD_NODE": node}
        environment |= {"LOCAL_RANK": "0", **variables}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(TRAINER)],
                env={name: value for name, value in environment.items() if value is not None},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        plane.trainers.append(self)

    @property
    def pid(self) -> int:
        return self.process.pid

    def answer(self, seconds: float = PATIENCE_S) -> dict[str, Any]:
        """Return the next line that it prints."""
        assert self.process.stdout is not None
        assert readable([self.process.stdout], seconds), f"rank {self.rank} said nothing; its log: {self.said()}"
        line = self.process.stdout.readline()
        assert line, f"rank {self.rank} ended; its log: {self.said()}"
        return json.loads(line)

    def command(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(words.encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, words: str) -> dict[str, Any]:
        self.command(words)
        return self.answer()

    def said(self) -> str:
        return self.log.read_text()

    def end(self) -> int:
        """Let it leave in good order; return its exit code."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(PATIENCE_S)
        self.process.stdout.close()
        return code

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(PATIENCE_S)


class Plane:
    """A job of `ranks` ranks on two nodes, "left" and "right"."""

    def __init__(self, run_dir: Path, port: int, ranks: int = 4, job: str = "job") -> None:
        self.folder = run_dir.parent
        self.run_dir, self.port, self.ranks, self.job = run_dir, port, ranks, job
        self.trainers: list[Trainer] = []
        self.manager = ManagerProcess(run_dir, port, job)
        self.environment: dict[str, str | None] = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TASKD_RUN_DIR": str(run_dir),
            "TASKD_JOB_ID": job,
            "TASKD_MANAGER_HOST": "127.0.0.1",
            "TASKD_MANAGER_PORT": str(port),
            "TASKD_AGENT_LINGER_MS": str(LINGER_MS),
            "TASKD_WORKER_REGISTER_WAIT_MS": str(int(PATIENCE_S * 1000)),
            "TASKD_STD_LOG_LEVEL": "info",
        }
        self._asker: Asker | None = None

    def __enter__(self) -> Plane:
        return self

    def __exit__(self, *_: object) -> None:
        if self._asker is not None:
            self._asker.__exit__()
        for trainer in self.trainers:
            if trainer.process.poll() is None:
                trainer.kill()
            for stream in (trainer.process.stdin, trainer.process.stdout):
                if stream is not None and not stream.closed:
                    stream.close()
        if self.manager.process is not None:
            self.manager.end()

    def node(self, rank: int) -> str:
        return "left" if rank < self.ranks // 2 else "right"

    def train(self, *ranks: int, **variables: str | None) -> list[Trainer]:
        """Start these ranks on their nodes, and wait until each has reported how its start went."""
        started = [Trainer(self, rank, self.node(rank), **variables) for rank in ranks]
        for trainer in started:
            trainer.started = trainer.answer()  # type: ignore[attr-defined]
        return started

    def facts(self) -> dict[str, Any]:
        """Return the facts from which `taskd status --json` is made."""
        if self._asker is None:
            place = argparse.Namespace(job=self.job, host="127.0.0.1", port=self.port, json=True)
            os.environ["TASKD_RUN_DIR"] = str(self.run_dir)
            self._asker = Asker(place)
        return self._asker.ask("status")

    def rank(self, rank: int) -> dict[str, Any]:
        """Return what the manager says of this rank; empty if it does not know the rank."""
        return next((row for row in self.facts()["ranks"] if row["rank"] == rank), {})

    def agent_pid(self, node: str) -> int:
        """Return the process that listens as this node's agent; 0 if there is none."""
        connection = local.connect(local.address(self.job, node))
        if connection is None:
            return 0
        # SO_PEERCRED names the process that called listen(): the worker. The agent is the process that holds it now.
        inode = listening_inode(local.address(self.job, node))
        connection.close()
        return next((pid for pid in agents() if holds(pid, inode)), 0)

    def wait_for_no_agents(self) -> None:
        wait_for(lambda: not self.agent_pid("left") and not self.agent_pid("right"), "the agents' end")


def listening_inode(name: str) -> str:
    """Return the inode of the socket that listens on an abstract name."""
    shown = "@" + name[1:]
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        columns = line.split()
        if len(columns) > 7 and columns[7] == shown and int(columns[3], 16) & 0x10000:  # __SO_ACCEPTCON
            return columns[6]
    return ""


def agents() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and b"taskd.agent" in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def holds(pid: int, inode: str) -> bool:
    """Whether this process has that socket. The process may close another descriptor while we look, such as a
    connection that asked for its address a moment ago. This does not end the search."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    return any(link(f"/proc/{pid}/fd/{name}") == f"socket:[{inode}]" for name in names)


def link(path: str) -> str:
    """Return the target of the link; empty if the link is gone."""
    try:
        return os.readlink(path)
    except OSError:
        return ""
