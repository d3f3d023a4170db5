"""Runs scripts in processes forked from one that has imported torch. This saves each script two seconds of work.

taskd's standby does the same for its workers, so a script finds what a worker finds: one thread, torch imported, its
own arguments, environment and folder, and an interpreter that ends as usual. There are two processes to fork from, and
neighbouring ranks come from different ones. So what depends on the order of a set still differs between these ranks.

Use it for scripts that do not test how they are started. It judges nothing.
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

MORE = ("torch.distributed.run", "taskd.run", "taskd.launch.launcher", "taskd.worker.boot", "taskd.manager.loop")
"""Modules that only launchers and managers import."""
READ_AT_IMPORT = ("OMP_", "MKL_", "LD_", "MALLOC_", "PYTHON", "TORCH_", "PYTORCH_", "ATEN_")
SOURCES = 2
MOST_BYTES = 1 << 17
WIDTH = 16
"""Width of a number in the pipe that carries a script's pid and, later, its exit code."""


class Forked:
    """One running script, used like a subprocess.Popen."""

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
        """Read its new output. Return False at the end of the output."""
        data = os.read(self.stdout.fileno(), 1 << 16)
        self.said += data
        return bool(data)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Wait for its end and return its output, without what was read from `stdout` before."""
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
    """A process to fork from. The first script that needs it starts it."""

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
        """Wait until it has imported its modules."""
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
    """Run this script with its arguments. Scripts whose numbers differ by one come from different processes."""
    read = {name: text for name, text in environment.items() if name.startswith(READ_AT_IMPORT)}
    keys = [(source, *sorted(read.items())) for source in range(SOURCES)]
    if keys[0] not in _sources:
        # All start together, and none is used before all are ready: no rank should wait for another rank's imports.
        _sources.update({key: Source(environment) for key in keys})
        for key in keys:
            _sources[key].wait()
    return _sources[keys[number % SOURCES]].fork(words, environment, folder)


def pids() -> set[int]:
    """Return the pids of the processes to fork from, which live until `close`."""
    return {source.process.pid for source in _sources.values()}


def close() -> None:
    while _sources:
        _sources.popitem()[1].close()


# ---- in the process to fork from


def serve(line: socket.socket) -> list[str] | None:
    """Fork a script for each request. Returns the words in the script; None here, once the asking process is gone."""
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
    """Fork once more. Returns the words in the script. In the parent: None, after it has reported the script's end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        os.close(say)
        os.write(end, f"{pid:{WIDTH}}".encode())
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        os.write(end, f"{code:{WIDTH}}".encode())
        # Its pid is not reused until the asking process has read the exit code, as with a child of its own.
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
    log.configure()  # the log level was read when taskd was imported, for the first script
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
