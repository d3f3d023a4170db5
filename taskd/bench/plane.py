"""A control plane to measure: a real manager, real agents, and training processes that only count steps.

The processes need no torch, so the control plane is measured and not a start-up. All processes end with the context.
Nothing here measures.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

_TRAINER = """
import os, sys, threading
from taskd.api import init_taskd_worker, start_taskd_worker
from taskd.worker import hooks
held = bytearray(int(sys.argv[1]) << 20)
for at in range(0, len(held), 4096):
    held[at] = 1
assert init_taskd_worker(int(os.environ["RANK"])) and start_taskd_worker()
print("ready", flush=True)
pause = threading.Event()
step = 0
while not pause.wait(0.02):
    hooks.step_end(step)
    step += 1
"""


class Plane:
    """One job. `trainer` starts a rank, `events` asks the manager."""

    def __init__(self, directory: str, nodes: int, per_node: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.per_node = per_node
        self.environment = os.environ | {
            "TASKD_RUN_DIR": directory,
            # A new job each time: the agents of the job before linger, in case their workers restart.
            "TASKD_JOB_ID": os.path.basename(directory),
            "TASKD_MANAGER_HOST": "127.0.0.1",
            "TASKD_MANAGER_PORT": str(port),
            "TASKD_JOB_NODE_NUMS": str(nodes),
            "TASKD_JOB_PROC_PER_NODE": str(per_node),
            "WORLD_SIZE": str(nodes * per_node),
            "TASKD_WORKER_REGISTER_WAIT_MS": "30000",
        }
        self.processes: list[subprocess.Popen[str]] = []
        self.manager = self._start(["-m", "taskd.manager"], {"TASKD_STD_LOG_LEVEL": "info"}, subprocess.PIPE)
        assert self.manager.stderr is not None
        for line in self.manager.stderr:
            if "ready: manager" in line:
                break

    def _start(self, words: list[str], variables: dict[str, str], errors: int | None = None) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *words],
            env=self.environment | variables,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        self.processes.append(process)
        return process

    def trainer(self, rank: int, megabytes: int = 1) -> subprocess.Popen[str]:
        """Start a training process of this rank with this much memory; return when it is registered."""
        node, local = divmod(rank, self.per_node)
        variables = {"RANK": str(rank), "LOCAL_RANK": str(local), "GROUP_RANK": str(node)}
        process = self._start(["-c", _TRAINER, str(megabytes)], variables)
        assert process.stdout is not None
        if process.stdout.readline().strip() != "ready":
            raise RuntimeError(f"rank {rank} could not be registered")
        return process

    def ask(self, topic: str) -> dict[str, Any]:
        """What `taskd TOPIC --json` prints."""
        command = [sys.executable, "-m", "taskd", topic, "--json"]
        found = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=True).stdout
        if topic == "events":
            return {"events": [json.loads(line) for line in found.splitlines()]}
        status: dict[str, Any] = json.loads(found)
        return status

    def agent_pid(self, node: str) -> int:
        """The process id of a node's agent."""
        return next(int(one["pid"]) for one in self.ask("status")["nodes"] if one["node"] == node)

    def after(self, begin_ns: int, wanted: Callable[[dict[str, Any]], bool], seconds: float) -> float | None:
        """Seconds from `begin_ns` (time of day) to the first wanted event; None if none came in time."""
        give_up = time.monotonic() + seconds
        while time.monotonic() < give_up:
            for event in self.ask("events")["events"]:
                if event["wall_ns"] >= begin_ns and wanted(event):
                    return float(event["wall_ns"] - begin_ns) / 1e9
        return None

    def close(self) -> None:
        """End every process that was started here."""
        for process in reversed(self.processes):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.processes:
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


@contextlib.contextmanager
def plane(nodes: int = 1, per_node: int = 2) -> Iterator[Plane]:
    """Run a plane while the context is open."""
    with tempfile.TemporaryDirectory(prefix="taskd-bench-") as directory:
        one = Plane(directory, nodes, per_node)
        try:
            yield one
        finally:
            one.close()
