"""Worker processes for the tests of taskd._native. As an agent does, a test gets a socket and a page sent over it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from taskd import _native
from tests.patience import PATIENCE_S
from tests.ready import readable

HERE = Path(__file__).resolve().parent


class Worker:
    """One running worker.py and the page that it sent. The test reaps the process, or the fixture does at the end."""

    def __init__(self, rank: int) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel.settimeout(PATIENCE_S)
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "worker.py"), str(theirs.fileno()), str(rank)],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": str(HERE.parents[1])},
        )
        theirs.close()
        _, (fd,), _, _ = socket.recv_fds(self.channel, 64, 1)
        self.page = _native.Page.attach(fd)
        os.close(fd)

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, command: str) -> None:
        self.channel.send(command.encode())

    def answer(self) -> str:
        return self.channel.recv(4096).decode()

    def ask(self, command: str) -> str:
        self.tell(command)
        return self.answer()

    def end(self) -> None:
        self.channel.close()
        if self.process.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start_worker() -> Iterator[Callable[..., Worker]]:
    workers: list[Worker] = []

    def start(rank: int = 0, beat: bool = True) -> Worker:
        workers.append(Worker(rank))
        if beat:
            assert workers[-1].ask("beat 10000000") == "done"
        return workers[-1]

    yield start
    for worker in workers:
        worker.end()


@pytest.fixture
def watch() -> Iterator[_native.DeathWatch]:
    watch = _native.DeathWatch()
    yield watch
    watch.close()


@pytest.fixture
def next_deaths() -> Callable[..., list[_native.Death]]:
    def wait(watch: _native.DeathWatch, timeout_s: float = PATIENCE_S) -> list[_native.Death]:
        readable([watch.fd], timeout_s)
        return watch.take()

    return wait


@pytest.fixture
def eventually() -> Callable[[Callable[[], object]], None]:
    """Return a function that polls a condition until it is true, for conditions without an event to wait for."""

    def check(is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < deadline, "it never came to be so"
            time.sleep(0.001)

    return check


@pytest.fixture
def native_threads(eventually: Callable[[Callable[[], object]], None]) -> Callable[[str, int], None]:
    """Wait until this process has a number of threads of a name. A joined thread is still listed for a moment."""

    def count(name: str) -> int:
        found = 0
        for path in Path("/proc/self/task").glob("*/comm"):
            try:
                found += path.read_text().strip() == name
            except (FileNotFoundError, ProcessLookupError):
                continue
        return found

    def check(name: str, number: int) -> None:
        eventually(lambda: count(name) == number)

    return check
