"""Runs scripts in processes forked from one that has imported torch, which spares each of them two seconds of work.

taskd's standby does the same for its workers, so a script finds what a worker finds: one thread, torch imported, its
own arguments, environment and folder, an interpreter that ends as it always does. There are two such processes, and
neighbouring ranks come from different ones: what depends on the order of a set still differs between them.

It is for scripts that are not about being started. It judges nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from taskd import log
from taskd.launch.standby import IMPORTS
from taskd.launch.standby_process import uncollected
from tests.ready import readable

MORE = ("torch.distributed.run",)
"""What only launchers import."""
READ_AT_IMPORT = ("OMP_", "MKL_", "LD_", "MALLOC_", "PYTHON", "TORCH_", "PYTORCH_", "ATEN_")
SOURCES = 2
MOST_BYTES = 1 << 17
WIDTH = 16
"""Of a number in the pipe that tells a script's pid and, later, its exit code."""


class Forked:
    """One running script, used like the subprocess.Popen that it would be otherwise."""

    def __init__(self, stdout: int, status: int) -> None:
        self.stdout = os.fdopen(stdout, errors="replace")
        self.status = status
        self.said = b""
        self.returncode: int | None = None
        self.pid = int(os.read(status, WIDTH))

    def poll(self) -> int | None:
        return self._ended(0)

    def _ended(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and readable([self.status], timeout_s):
            self.returncode = int(os.read(self.status, WIDTH))
            os.close(self.status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked script", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def hear(self) -> bool:
        """Read what it has said since; False: it says nothing more."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        self.said += data
        return bool(data)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """What it has said, once it has ended. What was read of `stdout` before is not in it."""
        ends = None if timeout is None else time.monotonic() + timeout
        while not self.stdout.closed:
            left_s = None if ends is None else max(0.0, ends - time.monotonic())
            if not readable([self.stdout], left_s):
                raise subprocess.TimeoutExpired("a forked script", timeout or 0)
            if not self.hear():
                self.stdout.close()
        self.wait(None if ends is None else max(0.0, ends - time.monotonic()))
        return self.said.decode(errors="replace"), None


class Source:
    """A process to fork from, started with the first script that wants one."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def wait(self) -> None:
        """Until it has imported what it is to import."""
        assert self.line.recv(1), "the process to fork from has ended"

    def fork(self, words: Sequence[str], environment: Mapping[str, str], folder: Path) -> Forked:
        request = json.dumps([list(words), dict(environment), str(folder)]).encode()
        said, say = os.pipe()
        ended, end = os.pipe()
        socket.send_fds(self.line, [request], [say, end])
        os.close(say)
        os.close(end)
        return Forked(said, ended)

    def close(self) -> None:
        self.line.close()
        self.process.wait()


_sources: dict[tuple[object, ...], Source] = {}


def start(words: Sequence[str], environment: Mapping[str, str], folder: Path, number: int) -> Forked:
    """Run this script with its arguments; scripts whose numbers differ by one come from different processes."""
    read = {name: text for name, text in environment.items() if name.startswith(READ_AT_IMPORT)}
    keys = [(source, *sorted(read.items())) for source in range(SOURCES)]
    if keys[0] not in _sources:
        # All at once, and none is used before the last is ready: no rank is to wait for another one's imports.
        _sources.update({key: Source(environment) for key in keys})
        for key in keys:
            _sources[key].wait()
    return _sources[keys[number % SOURCES]].fork(words, environment, folder)


def pids() -> set[int]:
    """Of the processes to fork from, which live until `close`."""
    return {source.process.pid for source in _sources.values()}


def close() -> None:
    while _sources:
        _sources.popitem()[1].close()


# ---- in the process to fork from


def serve(line: socket.socket) -> list[str] | None:
    """Fork a script for each request; in the script: its words. None: whoever asked is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(line, MOST_BYTES, 2)
        if not request:
            return None
        if os.fork() == 0:
            line.close()
            words = script_of(request, *descriptors)
            if words is None:
                os._exit(0)
            return words
        for descriptor in descriptors:
            os.close(descriptor)


def script_of(request: bytes, say: int, end: int) -> list[str] | None:
    """Fork once more: the script's words in it; None, once it has ended and that was told, in the one between."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        os.close(say)
        os.write(end, f"{pid:{WIDTH}}".encode())
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        os.write(end, f"{code:{WIDTH}}".encode())
        # Its pid stays its own until whoever asked has read that, as with a child of his.
        poller = select.poll()
        poller.register(end, 0)
        poller.poll()
        os.waitpid(pid, 0)
        return None
    os.close(end)
    os.dup2(say, 1)
    os.dup2(say, 2)
    os.close(say)
    words, environment, folder = json.loads(request)
    os.environ.clear()
    os.environ.update(environment)
    log.configure()  # how much is said was read when taskd was imported, by whoever came first
    os.chdir(folder)
    return list(words)


def main() -> None:
    with uncollected():
        for module in (*IMPORTS, *MORE):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    line = socket.socket(fileno=int(sys.argv[1]))
    line.send(b"!")
    words = serve(line)
    if words is not None:
        importlib.import_module("numpy").random.seed()
        sys.argv[:] = words
        sys.path[0] = str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
