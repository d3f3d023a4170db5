"""The ranks of one measured process group: real processes, on separate hosts or all here, and what they print.

It is a context manager: processes that still run at its end are killed, and all of them end with the process that
started them. It measures nothing itself.
"""

from __future__ import annotations

import array
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from taskd.bench.hosts import CONTROL, Hosts, interface
from taskd.bench.job import free_port

PATIENCE_S = 240.0


class Failed(RuntimeError):
    """The ranks did not do what was expected; the text is their output."""


class Ranks:
    """This many processes with the same task. If there are hosts, the ranks are spread over them in order."""

    def __init__(
        self,
        task: str,
        size: int,
        *,
        backend: str,
        hosts: Hosts | None = None,
        rails: tuple[str, ...] | None = None,
        timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
        **words: Any,
    ) -> None:
        """`rails`: the rails that the transport may use; None: all rails of the hosts. gloo uses the first one."""
        self.size, self.hosts, self.backend = size, hosts, backend
        self._folder = tempfile.TemporaryDirectory(prefix="taskd-ranks-")
        self.rails = rails if rails is not None else hosts.rails if hosts else ()
        self._more = dict(environment or {})
        self.lines: list[tuple[int, str]] = []
        self._changed = threading.Condition()
        port = free_port()
        self._spec = {
            "size": size,
            "store": [hosts.hosts[0].address(CONTROL) if hosts else "127.0.0.1", port],
            "task": task,
            "words": words,
            "folder": self._folder.name,
            "backend": backend,
            "timeout_s": timeout_s,
        }
        self.processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        for rank in range(size):
            self._start(rank)

    def host_of(self, rank: int) -> int:
        """The index of the host on which this rank runs."""
        return rank * len(self.hosts.hosts) // self.size if self.hosts else 0

    def _start(self, rank: int) -> None:
        # The kernel signals these children when their parent is killed: nothing may outlive its benchmark.
        command = [sys.executable, "-m", "taskd.launch.child", str(os.getpid()), "module"]
        command += ["taskd.bench.exchange", json.dumps(self._spec | {"rank": rank})]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TASKD_JOB_ID": os.path.basename(self._folder.name)}
        if self.hosts:
            host = self.hosts.hosts[self.host_of(rank)]
            command = host.inside(*command)
            environment["TASKD_RAILS"] = ",".join(f"{rail}={host.address(rail)}" for rail in self.rails)
            environment["GLOO_SOCKET_IFNAME"] = interface(self.rails[0])
        else:
            environment |= {"TASKD_RAILS": "a=127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        process = subprocess.Popen(
            command,
            env=environment | self._more,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.processes.append(process)
        self._readers.append(threading.Thread(target=self._read, args=(rank, process)))
        self._readers[-1].start()

    def _read(self, rank: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                with self._changed:
                    self.lines.append((rank, line.rstrip()))
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process, reader in zip(self.processes, self._readers, strict=True):
            process.wait()
            reader.join()
            assert process.stdin is not None
            process.stdin.close()
        self._folder.cleanup()

    # ---- what they print --------------------------------------------------------------------------------------

    def said(self) -> str:
        """All output of the ranks, for an error's text."""
        return "\n".join(f"rank {rank}: {line}" for rank, line in self.lines)

    def found(self, key: str) -> dict[int, dict[str, Any]]:
        """By rank, the first object with this key."""
        answers: dict[int, dict[str, Any]] = {}
        for rank, line in list(self.lines):
            if line.startswith("{"):
                fields = json.loads(line)
                if key in fields:
                    answers.setdefault(rank, fields)
        return answers

    def objects(self, key: str) -> list[dict[str, Any]]:
        """All objects with this key, in the order in which they came."""
        found = [json.loads(line) for _, line in list(self.lines) if line.startswith("{")]
        return [one for one in found if key in one]

    def wait(self, key: str, seconds: float = PATIENCE_S) -> list[dict[str, Any]]:
        """Wait until every rank has printed an object with this key; return these objects. Raises Failed."""
        ends = time.monotonic() + seconds
        with self._changed:
            while len(answers := self.found(key)) < self.size:
                left = ends - time.monotonic()
                gone = [rank for rank, one in enumerate(self.processes) if one.poll() is not None]
                if left <= 0 or any(rank not in answers and not self._readers[rank].is_alive() for rank in gone):
                    raise Failed(f"{key!r} was not said by all {self.size} ranks in {seconds:.0f} s:\n{self.said()}")
                self._changed.wait(min(left, 0.5))
        return [answers[rank] for rank in range(self.size)]

    # ---- rounds that run until they are stopped ---------------------------------------------------------------

    def stop(self) -> None:
        """Let all ranks stop after the same round; wait("rounds") returns their results."""
        process = self.processes[0]
        assert process.stdin is not None
        process.stdin.write("stop\n")
        process.stdin.flush()

    def times(self) -> list[list[tuple[int, int]]]:
        """By rank, begin and end of each round, in CLOCK_MONOTONIC nanoseconds. Call it after wait("rounds")."""
        found = []
        for rank in range(self.size):
            numbers = array.array("q")
            numbers.frombytes(Path(self._folder.name, f"times.{rank}").read_bytes())
            found.append(list(zip(numbers[::2], numbers[1::2], strict=True)))
        return found

    def flowing(self, host: int, rail: str, enough: int = 1 << 16, seconds: float = PATIENCE_S) -> bool:
        """Wait until this many more bytes have passed this host's rail: a rail must be in use before it is broken."""
        assert self.hosts is not None
        one = self.hosts.hosts[host]
        goal = one.bytes(rail) + enough
        return until(lambda: one.bytes(rail) >= goal, seconds)


def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Poll a condition that no event reports; return whether it became true in time."""
    ends = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > ends:
            return False
        time.sleep(0.002)  # a counter of the kernel: there is no event to wait for
    return True
