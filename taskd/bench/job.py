"""A whole job to disturb: launchers, ranks that really train, and what the manager says of its incidents.

Used by the benchmarks of recovery and of the steady state. It starts and ends processes and reads what they print; it
measures nothing itself.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).with_name("train.py")
PATIENCE_S = 300.0


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Job:
    """One training of `train.py` under taskd-run (or torchrun), on one or more nodes of this machine."""

    def __init__(
        self,
        words: Sequence[object],
        *,
        ranks: int,
        nodes: int = 1,
        spares: int = 0,
        launcher: Sequence[str] = ("-m", "taskd.run", "--max-restarts", "1000"),
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="taskd-bench-")
        self.environment = os.environ | {
            "TASKD_RUN_DIR": self._folder.name,
            "TASKD_JOB_ID": os.path.basename(self._folder.name),
            "TASKD_MANAGER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
        }
        self.lines: list[str] = []
        rendezvous = free_port()
        self.launchers = []
        for node in range(nodes + spares):
            command = [sys.executable, *launcher, "--nproc-per-node", str(ranks // nodes)]
            command += ["--nnodes", f"{nodes}:{nodes + spares}" if spares else str(nodes)]
            if nodes + spares > 1:
                command += ["--node-rank", str(node), "--master-addr", "127.0.0.1"]
            command += ["--master-port", str(rendezvous), str(TRAIN), *map(str, words)]
            self.launchers.append(
                subprocess.Popen(
                    command,
                    env=self.environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    start_new_session=True,
                )
            )
        self._readers = [threading.Thread(target=self._read, args=(one,)) for one in self.launchers]
        for reader in self._readers:
            reader.start()

    def _read(self, launcher: subprocess.Popen[str]) -> None:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            self.lines.append(line.rstrip())

    def running(self) -> bool:
        """Whether the first launcher still runs."""
        return self.launchers[0].poll() is None

    def ask(self, topic: str) -> dict[str, Any] | None:
        """What `taskd TOPIC --json` says now; None while nobody answers."""
        command = [sys.executable, "-m", "taskd", topic, "--json"]
        found = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if found.returncode:
            return None
        answer: dict[str, Any] = json.loads(found.stdout)
        return answer

    def events(self) -> list[dict[str, Any]]:
        """All events that the manager has noted."""
        command = [sys.executable, "-m", "taskd", "events", "--json"]
        found = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        return [json.loads(line) for line in found.stdout.splitlines()]

    def calm(self, past_step: int, incidents: int) -> dict[int, dict[str, Any]]:
        """The ranks, once all train beyond a step and this many incidents are closed. Raises RuntimeError if never."""
        while self.running():
            facts = self.ask("status")
            if facts is None:
                continue
            ranks = {rank["rank"]: rank for rank in facts["ranks"]}
            known = facts["incidents"]
            settled = known["known"] >= incidents and not known["open"]
            if settled and all(rank["state"] == "alive" and (rank["step"] or 0) > past_step for rank in ranks.values()):
                return ranks
        raise RuntimeError("the job ended before it was to be disturbed:\n" + "\n".join(self.lines[-30:]))

    def results(self) -> list[dict[str, Any]]:
        """Wait for the end; what the ranks printed."""
        for launcher in self.launchers:
            launcher.wait(PATIENCE_S)
        self.close()
        return [json.loads(line) for line in self.lines if line.startswith('{"rank"')]

    def close(self) -> None:
        """End whatever still runs."""
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGTERM)
        for launcher in self.launchers:
            launcher.wait()
        for reader in self._readers:
            reader.join()
        for launcher in self.launchers:
            if launcher.stdout is not None:
                launcher.stdout.close()
        self._folder.cleanup()
