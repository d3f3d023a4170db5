"""A demonstration: a job of four ranks on two simulated nodes loses two ranks, heals, and ends with the same weights.

The job runs twice: first undisturbed, and then while this script kills rank 2 and later rank 0 with SIGKILL. The script
shows the live status meanwhile. After the second run it lists the incidents and how long each phase took. At the end it
says whether both runs ended with identical weights. The exit code is 0 only if they did.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from taskd.cli import table
from taskd.cli.status import picture

HERE = Path(__file__).resolve().parent
NODES, RANKS_PER_NODE = 2, 2


class Job:
    """One training job with two launchers. Each launcher works as if it were alone on its node."""

    def __init__(self, name: str, directory: str, steps: int) -> None:
        self.name = name
        self.directory = directory
        self.lines: list[str] = []
        with socket.socket() as probe, socket.socket() as other:
            probe.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            self.rendezvous, self.port = probe.getsockname()[1], other.getsockname()[1]
        self.environment = os.environ | {
            "TASKD_JOB_ID": name,
            "TASKD_RUN_DIR": directory,
            "TASKD_MANAGER_PORT": str(self.port),
            "OMP_NUM_THREADS": "1",
        }
        self.launchers = [self._launch(node, steps) for node in range(NODES)]
        self.readers = [threading.Thread(target=self._read, args=(one,), daemon=True) for one in self.launchers]
        for reader in self.readers:
            reader.start()

    def _launch(self, node: int, steps: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "taskd.run", "--nnodes", str(NODES), "--node-rank", str(node)]
        command += ["--nproc-per-node", str(RANKS_PER_NODE), "--master-addr", "127.0.0.1"]
        command += ["--master-port", str(self.rendezvous)]
        command += [str(HERE / "train_ddp.py"), "--steps", str(steps)]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment
        )

    def _read(self, launcher: subprocess.Popen[str]) -> None:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            self.lines.append(line.rstrip())

    def status(self) -> Iterator[dict[str, Any]]:
        """Yield the job's status again and again, until the job has ended."""
        while any(launcher.poll() is None for launcher in self.launchers):
            command = [sys.executable, "-m", "taskd", "status", "--watch", "--json", "--interval", "0.1"]
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=self.environment
            ) as watch:
                assert watch.stdout is not None
                for line in watch.stdout:
                    yield json.loads(line)

    def ask(self, topic: str) -> str:
        """Return what another taskd command prints about this job."""
        command = [sys.executable, "-m", "taskd", topic]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, check=False).stdout

    def end(self) -> str:
        """Wait for the launchers. Return the hash of the final weights, or an empty string if the job failed."""
        codes = [launcher.wait() for launcher in self.launchers]
        for reader in self.readers:
            reader.join()
        found = [line.split()[-1] for line in self.lines if "weights " in line]
        if any(codes) or not found:
            print("\n".join(self.lines))
            print(f"job {self.name} failed: exit codes {codes}")
            return ""
        return found[0]


class Screen:
    """Shows status pictures: in place on a terminal, and only one in EVERY elsewhere."""

    EVERY = 30

    def __init__(self) -> None:
        self.terminal = sys.stdout.isatty()
        self.height = 0
        self.count = 0

    def show(self, text: str) -> None:
        """Show the next picture."""
        self.count += 1
        if self.terminal:
            up = f"\x1b[{self.height}A" if self.height else ""
            lines = [table.cut(line, table.columns()) for line in text.splitlines()]
            sys.stdout.write(up + "".join(f"\x1b[K{line}\n" for line in lines))
            self.height = len(lines)
        elif self.count % self.EVERY == 1:
            sys.stdout.write(text + "\n")
        sys.stdout.flush()

    def say(self, text: str) -> None:
        """Print a line that stays on the screen."""
        self.height = 0
        print(text, flush=True)


def run(name: str, directory: str, steps: int, kills: list[tuple[int, int]]) -> str:
    """Run one job. `kills` are (step, rank) pairs: which rank to kill at which step. Return the hash of its weights."""
    job, screen, todo = Job(name, directory, steps), Screen(), list(kills)
    incidents = ""
    for facts in job.status():
        screen.show(picture(facts, screen.terminal, table.columns()))
        ranks = {rank["rank"]: rank for rank in facts["ranks"] if rank["state"] == "alive"}
        calm = len(ranks) == NODES * RANKS_PER_NODE and not facts["incidents"]["open"]
        if todo and calm and min(rank["step"] or 0 for rank in ranks.values()) >= todo[0][0]:
            _, victim = todo.pop(0)
            screen.say(f"\n>>> SIGKILL to rank {victim} (pid {ranks[victim]['pid']})\n")
            os.kill(ranks[victim]["pid"], signal.SIGKILL)
        elif kills and not todo and calm and facts["incidents"]["known"] >= len(kills) and not incidents:
            incidents = job.ask("incidents")
    found = job.end()
    if incidents:
        print(f"\n{incidents}")
    print(f"{name}: weights {found or 'none'}\n", flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory(prefix="taskd-demo-") as directory:
        print(f"1. {NODES * RANKS_PER_NODE} ranks on {NODES} simulated nodes, undisturbed\n", flush=True)
        undisturbed = run("undisturbed", directory, steps, [])
        print("2. The same training; rank 2 is killed, and later rank 0\n", flush=True)
        disturbed = run("disturbed", directory, steps, [(steps // 4, 2), (steps // 2, 0)])
    identical = bool(undisturbed) and undisturbed == disturbed
    print(f"weights identical: {'yes' if identical else 'no'}")
    return 0 if identical else 1


if __name__ == "__main__":
    sys.exit(main())
