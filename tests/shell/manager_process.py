"""A real manager in its own process, and an agent, made by hand from the wire's own parts, that speaks with it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zmq

from taskd import config
from taskd.core.messages import AgentHello, Answer, Order, RankReport, Report
from taskd.core.types import Phase, RankState, Stage
from taskd.wire import keys
from taskd.wire.codec import Envelope, WireError, decode, encode
from tests.patience import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]


def wait_for(condition: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """Poll the visible state of another process until it is as wanted; if it never is, the error names `what`."""
    deadline = time.monotonic() + patience_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)


class ManagerProcess:
    """`python -m taskd.manager` with its standard error in a file."""

    def __init__(
        self, run_dir: Path, port: int, job: str = "job", prefix: tuple[str, ...] = (), **variables: str
    ) -> None:
        self.run_dir, self.port, self.job = run_dir, port, job
        self.folder = run_dir / job
        self.prefix = prefix
        self.log = run_dir.parent / f"manager-{job}-{port}.log"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TASKD_RUN_DIR": str(run_dir),
            "TASKD_JOB_ID": job,
            "TASKD_MANAGER_PORT": str(port),
            "TASKD_MANAGER_BIND": "127.0.0.1",
            "TASKD_JOB_NODE_NUMS": "2",
            "TASKD_JOB_PROC_PER_NODE": "2",
            "TASKD_STD_LOG_LEVEL": "info",
            **variables,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, ready: bool = True) -> ManagerProcess:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "taskd.manager"],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if ready:
            wait_for(self.note, f"a manager that is ready; it said: {self.said()}")
        return self

    def note(self) -> dict[str, Any] | None:
        """Return the note of this process; None until the process is ready."""
        assert self.process is not None
        assert self.process.poll() is None, f"the manager ended: {self.said()}"
        try:
            note = json.loads((self.folder / "manager.json").read_text())
        except (OSError, ValueError):
            return None
        return note if note["pid"] == self.process.pid else None

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """End the manager in good order; return its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def config(self) -> config.Config:
        return config.load(
            environ={}, job_id=self.job, job_run_dir=str(self.run_dir), manager_port=self.port, manager_host="127.0.0.1"
        )

    def cli(self, *words: str, timeout: float = PATIENCE_S) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "taskd.cli.main", *words],
            env={**os.environ, "PYTHONPATH": str(ROOT), "TASKD_RUN_DIR": str(self.run_dir), "TASKD_JOB_ID": self.job},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def status(self) -> dict[str, Any]:
        done = self.cli("status", "--json")
        assert done.returncode == 0, done.stderr
        facts: dict[str, Any] = json.loads(done.stdout)
        return facts


class HandAgent:
    """One life of a node's agent, which says what the test tells it to say."""

    interval_ms = 10_000
    """The agent counts as silent only after three of these, so a test may do other things in between."""

    def __init__(self, manager: ManagerProcess, node: str, ranks: tuple[int, ...], key: keys.Key | None = None) -> None:
        self.node, self.ranks, self.job = node, ranks, manager.job
        self.lock = threading.RLock()
        self.life = int.from_bytes(os.urandom(7), "big")
        self.sequence = 0
        self.term = 0
        self.epoch = 0
        self.states: dict[int, dict[str, Any]] = {rank: {} for rank in ranks}
        self.confirmed: set[tuple[int, int]] = set()
        self.context = zmq.Context()
        found = key or keys.find(manager.config())
        assert found is not None
        self.key, self.port = found, manager.port
        self.connect()

    def __enter__(self) -> HandAgent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self) -> None:
        self.socket: zmq.Socket[bytes] = self.context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.reconnect_ivl = 20
        self.key.protect_client(self.socket)
        self.socket.connect(f"tcp://127.0.0.1:{self.port}")

    @contextlib.contextmanager
    def beating(self) -> Iterator[HandAgent]:
        """Report every 100 ms meanwhile, as an agent does: an agent that says nothing is suspected."""
        ended = threading.Event()

        def beat() -> None:
            while not ended.wait(0.1):  # expires: the rhythm of the beats
                self.report()

        thread = threading.Thread(target=beat)
        thread.start()
        try:
            yield self
        finally:
            ended.set()
            thread.join()

    def close(self) -> None:
        self.socket.close(0)
        self.context.term()

    def envelope(self) -> Envelope:
        self.sequence += 1
        return Envelope(self.job, self.node, self.life, self.sequence)

    def say(self, message: Any) -> None:
        with self.lock:  # messages must be sent in the order of their numbers
            self.raw(encode(message, self.envelope()))

    def raw(self, *frames: bytes) -> None:
        with self.lock:
            self.socket.send_multipart(list(frames))

    def hello(self, **changes: Any) -> None:
        hello = AgentHello(
            job=self.job,
            node=self.node,
            host=os.uname().nodename,
            pid=os.getpid(),
            world_size=4,
            spawns=False,
            slots=0,
            interval_ms=self.interval_ms,
        )
        self.say(dataclasses.replace(hello, **changes))

    def rows(self) -> tuple[RankReport, ...]:
        plain = RankReport(
            rank=0,
            incarnation=1,
            pid=os.getpid(),
            state=RankState.ALIVE,
            exit_code=0,
            acknowledged=False,
            epoch=self.epoch,
            stage=Stage.RUNNING,
            updates=5,
            step=5,
            phase=Phase.BODY,
            beat_age_ms=3,
            step_ms=20,
            reason="",
        )
        rows = []
        for rank, changes in self.states.items():
            row = dataclasses.replace(plain, rank=rank, **changes)
            known = (rank, row.incarnation) in self.confirmed
            rows.append(dataclasses.replace(row, acknowledged=known))
        return tuple(rows)

    def report(self) -> None:
        self.say(Report(True, self.term, self.rows()))

    def receive(self, timeout_s: float = PATIENCE_S) -> Any:
        """Return the next message, or None."""
        deadline = time.monotonic() + timeout_s
        while True:
            with self.lock:  # never held for long: a beat may be due
                data = self.socket.recv() if self.socket.poll(10) else None  # expires: and looks again
            if data is not None:
                break
            if time.monotonic() >= deadline:
                return None
        found = decode(data)
        assert not isinstance(found, WireError), found
        envelope, message = found
        assert envelope.job == self.job or isinstance(message, Answer)
        if isinstance(message, Answer) and message.accepted:
            self.term = message.term
            self.confirmed |= {(known.rank, known.incarnation) for known in message.confirmed}
        if isinstance(message, Order):
            self.term, self.epoch = message.term, max(self.epoch, message.epoch)
        return message

    def join(self) -> None:
        """Say hello and report until every rank of this node is confirmed.

        A hello may be lost with a connection whose end was not noticed yet. The manager then asks for another one.
        """
        wanted = {(rank, row.incarnation) for rank, row in zip(self.states, self.rows(), strict=True)}
        deadline = time.monotonic() + PATIENCE_S
        self.hello()
        while not wanted <= self.confirmed:
            assert time.monotonic() < deadline, f"{wanted - self.confirmed} were never confirmed"
            self.report()
            while (message := self.receive(0.05)) is not None:
                if isinstance(message, Answer) and message.want_hello:
                    self.hello()
