"""taskd-run in a process that has imported torch, with such a standby, too. This saves four seconds of work per job.

It is started through tests/forked.py. Launcher, standby, manager and workers are separate processes as usual and do the
real work. Only one thing is not real: the first two need not import anything. A second standby is started cold.

It is for tests that are not about how jobs start. It judges nothing.
"""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace

STANDBY = "taskd.launch.standby_process"
MOST_BYTES = 1 << 17


class Waiting:
    """The process that becomes the first standby of this launcher, which then uses it as its subprocess.Popen."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        (theirs if self.pid else self.line).close()
        if not self.pid:
            self.line = theirs

    def become(self, words: Sequence[str], environment: Mapping[str, str], descriptor: int) -> Waiting:
        socket.send_fds(self.line, [json.dumps([list(words), dict(environment)]).encode()], [descriptor])
        self.line.close()
        return self

    def wait(self) -> int:
        return os.waitpid(self.pid, 0)[1]


def be_launcher(waiting: Waiting) -> None:
    """Run taskd-run. Its first standby is the waiting process."""
    from taskd import run
    from taskd.launch import standby

    def start(
        command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int], start_new_session: bool
    ) -> Waiting | subprocess.Popen[bytes]:
        if waiting.line.fileno() >= 0:
            return waiting.become(command[command.index(STANDBY) :], env, *pass_fds)
        return subprocess.Popen(command, env=env, pass_fds=pass_fds, start_new_session=start_new_session)

    standby.subprocess = SimpleNamespace(Popen=start)  # type: ignore[assignment]
    sys.path[0] = os.getcwd()  # as with `python -m`
    run.command()


def be_standby(line: socket.socket) -> None:
    """Become the standby when the launcher asks for it. Return if the launcher ends before."""
    from taskd import log
    from taskd.launch import standby_process

    request, descriptors, _, _ = socket.recv_fds(line, MOST_BYTES, 1)
    line.close()
    if not request:
        return
    words, environment = json.loads(request)
    os.dup2(descriptors[0], int(words[1]))
    os.close(descriptors[0])
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    log.configure()
    for name, number in (("stdout", 1), ("stderr", 2)):
        raw = open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115 - as `python -u` has them
        setattr(sys, name, io.TextIOWrapper(raw, errors=getattr(sys, name).errors, write_through=True))
    del sys.path[0]
    sys.argv[:] = words
    standby_process.main(words[1:])


def main() -> None:
    waiting = Waiting()
    if waiting.pid:
        be_launcher(waiting)
    else:
        be_standby(waiting.line)


if __name__ == "__main__":
    main()
