"""A whole job to disturb: launchers, ranks that really train, and what the manager reports about its incidents.

The benchmarks of detection, recovery and the steady state use it. A job trains until it is told its last step, so it
makes no more steps than the faults need. The run without faults, with which it is compared, is told the same step. The
events are followed over one open connection: repeated questions would take time of the cores that are measured.

It is a context manager: processes that still run at its end are ended, and all of them end with the process that
started them. It measures nothing itself.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from taskd.bench.hosts import CONTROL, Hosts, interface

TRAIN = Path(__file__).with_name("train.py")
PATIENCE_S = 240.0
"""The longest wait for a job."""
LOOK_S = 0.1
ENDING_S = 10.0
STEPS_AHEAD_S = 2.0
LOOKS_AHEAD = 3
"""The last step is announced STEPS_AHEAD_S in advance, plus the time of this many looks at the job, so that no rank has
passed it by then."""
Event = dict[str, Any]


class Broken(RuntimeError):
    """The job did not do what was expected; the text ends with its last output."""


def free_port() -> int:
    """A port without a listener at this moment."""
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
        last_step: int | None = None,
        launcher: Sequence[str] = ("taskd.run", "--max-restarts", "1000"),
        hosts: Hosts | None = None,
        kind: str = "ddp",
        more: Mapping[str, str] | None = None,
    ) -> None:
        """`words` are train.py's WIDTH, DEPTH and STEPS, `kind` is its last word. `last_step`: end after this step, if
        it is before STEPS. `hosts`: each node runs on a host of its own, and the ranks talk over the hosts' rails.
        `more`: variables for the environment."""
        self._hosts = hosts
        self._folder = tempfile.TemporaryDirectory(prefix="taskd-bench-")
        self.last = last_step
        self._last = Path(self._folder.name, "last")
        if last_step is not None:
            self._tell_last(last_step)
        self.environment = os.environ | {
            "TASKD_RUN_DIR": self._folder.name,
            "TASKD_JOB_ID": os.path.basename(self._folder.name),
            "TASKD_MANAGER_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
            **(more or {}),
        }
        self._master = "127.0.0.1"
        if hosts:
            self.environment["TASKD_RAILS"] = ",".join(f"{rail}={interface(rail)}" for rail in hosts.rails)
            self.environment["GLOO_SOCKET_IFNAME"] = interface(hosts.rails[0])
            self._master = hosts.hosts[0].address(CONTROL)
        self.lines: list[str] = []
        self.nodes: dict[str, dict[str, Any]] = {}
        """The nodes that were up when `settle` returned."""
        self.launchers: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._follower: subprocess.Popen[str] | None = None
        # The kernel signals these children when their parent is killed: nothing may outlive its benchmark.
        self._command = [sys.executable, "-m", "taskd.launch.child", str(os.getpid()), "module", *launcher]
        self._command += ["--nproc-per-node", str(ranks // nodes)]
        self._command += ["--nnodes", f"{nodes}:{nodes + spares}" if spares else str(nodes)]
        self._many = nodes + spares > 1
        self._words = ["--master-port", str(free_port()), str(TRAIN), *map(str, words), str(self._last), kind]
        for node in range(nodes + spares):
            self.launch(node)

    def launch(self, node: int) -> subprocess.Popen[str]:
        """Start the launcher of one more node."""
        own = ["--node-rank", str(node), "--master-addr", self._master] if self._many else []
        command = self._on(node, [*self._command, *own, *self._words])
        launcher = self._start(command, subprocess.STDOUT, self.lines.append)
        self.launchers.append(launcher)
        return launcher

    def _on(self, node: int, command: list[str]) -> list[str]:
        """The command line that runs this command on the host of this node."""
        return self._hosts.hosts[node].inside(*command) if self._hosts else command

    def _start(self, command: list[str], errors: int, take: Callable[[str], None]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        reader = threading.Thread(target=self._read, args=(process, take))
        self._readers.append(reader)
        reader.start()
        return process

    def _read(self, process: subprocess.Popen[str], take: Callable[[str], None]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._changed:
                    take(line.rstrip())
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes that still run."""
        processes = [*self.launchers, *filter(None, [self._follower])]
        for number, seconds in ((signal.SIGTERM, ENDING_S), (signal.SIGKILL, PATIENCE_S)):
            for process in processes:
                if process.poll() is None:
                    process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                for process in processes:
                    process.wait(seconds)
        for reader in self._readers:
            reader.join()
        self._folder.cleanup()

    # ---- what happens -----------------------------------------------------------------------------------------

    def running(self) -> bool:
        """Whether the first launcher still runs."""
        return self.launchers[0].poll() is None

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `taskd WORDS`, like an operator on the first node. Raises Broken if that does not end."""
        command = self._on(0, [sys.executable, "-m", "taskd", *words])
        try:
            return subprocess.run(
                command, env=self.environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
            )
        except subprocess.TimeoutExpired:
            raise Broken(f"taskd {' '.join(words)} did not end in {PATIENCE_S:.0f} s{self.said()}") from None

    def ask(self, *topic: str) -> dict[str, Any] | None:
        """What `taskd TOPIC --json` prints now; None while no manager answers."""
        found = self.command(*topic, "--json")
        if found.returncode:
            return None
        answer: dict[str, Any] = json.loads(found.stdout)
        return answer

    def event(self, kind: str, begin_ns: int, seconds: float = PATIENCE_S, words: str = "") -> Event:
        """Wait for the first event of this kind, with these words in its text, from this time of day on. Raises
        Broken."""
        self.follow()
        with self._changed:
            wanted = self._changed.wait_for(lambda: self._found(kind, begin_ns, words) or not self.running(), seconds)
            found = self._found(kind, begin_ns, words)
        if not wanted or found is None:
            told = "\n".join(f"{event['kind']}: {event['text']}" for event in self._events[-20:])
            raise Broken(f"no event {kind!r} {words!r} came in {seconds:.0f} s{self.said()}\nevents:\n{told}")
        return found

    def since(self, begin_ns: int) -> list[Event]:
        """All known events from this time of day on."""
        with self._changed:
            return [event for event in self._events if event["wall_ns"] >= begin_ns]

    def _found(self, kind: str, begin_ns: int, words: str) -> Event | None:
        late = (one for one in self._events if one["kind"] == kind and one["wall_ns"] >= begin_ns)
        return next((one for one in late if words in one["text"]), None)

    def follow(self) -> None:
        """Record the events from now on, for since()."""
        if self._follower is None:
            command = [sys.executable, "-m", "taskd.launch.child", str(os.getpid()), "module"]
            command += ["taskd", "events", "--json", "--follow"]
            self._follower = self._start(
                self._on(0, command), subprocess.DEVNULL, lambda line: self._events.append(json.loads(line))
            )

    def settle(self, steps: int, nodes: int = 0, rails: bool = True) -> dict[int, dict[str, Any]]:
        """Wait until all ranks have made this many more steps, with this many nodes up and no open incident; return the
        ranks. `rails` False: rails may be lost or lent, which stops no rank from training. Raises Broken."""
        ends = time.monotonic() + PATIENCE_S
        goal: dict[int, int] = {}
        while time.monotonic() < ends and self.running():
            facts = self.ask("status") or {"ranks": [], "nodes": [], "incidents": {"open": 0}, "stage": None}
            ranks = {rank["rank"]: rank for rank in facts["ranks"]}
            self.nodes = {node["node"]: node for node in facts["nodes"] if node["state"] == "up"}
            unwell = facts["incidents"]["open"] if rails else facts["stage"]
            well = bool(ranks) and not unwell and len(self.nodes) >= nodes
            if well and all(one["state"] == "alive" and one["step"] is not None for one in ranks.values()):
                goal = goal or {rank: one["step"] + steps for rank, one in ranks.items()}
                if all(one["step"] >= goal.get(rank, 0) for rank, one in ranks.items()):
                    return ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.launchers[0].wait(LOOK_S)
        raise Broken(f"the job did not come to train{self.said()}")

    def said(self) -> str:
        """The last output lines, for an error's text."""
        return ":\n" + "\n".join(self.lines[-30:])

    def tell(self, name: str, text: str) -> None:
        """Leave a file for the training, beside the file with its last step."""
        beside = self._last.with_name(f"{name}.new")
        beside.write_text(text)
        beside.rename(self._last.with_name(name))

    def told(self, name: str) -> str:
        """Read a file that the training has left."""
        return self._last.with_name(name).read_text()

    # ---- its end ----------------------------------------------------------------------------------------------

    def finish(self, rails: bool = True) -> int:
        """Let all ranks make some more steps and end; return the number of the last step. `rails` as in settle()."""
        begin = self.settle(1, rails=rails)
        begin_at = time.monotonic()
        then = self.settle(1, rails=rails)
        ahead_s = STEPS_AHEAD_S + LOOKS_AHEAD * (time.monotonic() - begin_at)
        step = max(one["step"] for one in then.values())
        pace = (step - min(one["step"] for one in begin.values())) / (time.monotonic() - begin_at)
        # The steps in so short a time may have been longer than usual.
        quickest_ms = min((one["step_ms"] for one in then.values() if one["step_ms"]), default=0)
        pace = max(pace, 1000 / quickest_ms if quickest_ms else 0)
        self.last = step + 2 + int(pace * ahead_s)
        self._tell_last(self.last)
        return self.last

    def times(self) -> dict[int, list[tuple[int, int]]]:
        """By rank, begin and end of each step of its last process, in CLOCK_MONOTONIC nanoseconds. Call it after
        results()."""
        found = {}
        for file in Path(self._folder.name).glob("times.*"):
            numbers = array.array("q")
            numbers.frombytes(file.read_bytes())
            found[int(file.suffix[1:])] = list(zip(numbers[::2], numbers[1::2], strict=True))
        return found

    def _tell_last(self, step: int) -> None:
        beside = self._last.with_suffix(".new")
        beside.write_text(str(step))
        beside.rename(self._last)

    def results(self) -> list[dict[str, Any]]:
        """Wait for the end; return what the ranks printed. Raises Broken."""
        ends = time.monotonic() + PATIENCE_S
        for launcher in self.launchers:
            try:
                launcher.wait(max(0.0, ends - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Broken(f"the job did not end{self.said()}") from None
        for reader, _ in zip(self._readers, self.launchers, strict=False):
            reader.join(ENDING_S)
        return [json.loads(line) for line in self.lines if line.startswith('{"rank"')]
