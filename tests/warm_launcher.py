"""taskd-run in a process that has imported all it needs, with such a standby and manager, too.

This saves four seconds of work per job. It is started through tests/forked.py. Launcher, standby, manager and workers
are separate processes as usual and do the real work. Only one thing is not real: the first three need not import
anything. A second standby and a second manager are started cold.

It is for tests that are not about how jobs start. It judges nothing.
"""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

STANDBY = "taskd.launch.standby_process"
MANAGER = "taskd.launch.child"
MOST_BYTES = 1 << 17


class Waiting:
    """A process that becomes another one of this launcher's, which then uses it as its subprocess.Popen."""

    def __init__(self) -> None:
        self.line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        (theirs if self.pid else self.line).close()
        if not self.pid:
            self.line = theirs

    def become(self, words: Sequence[str], environment: Mapping[str, str], descriptor: int) -> Waiting:
        socket.send_fds(self.line, [json.dumps([list(words), dict(environment), descriptor]).encode()], [descriptor])
        self.line.close()
        return self

    def wait(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def be_launcher(waiting: Mapping[str, Waiting]) -> None:
    """Run taskd-run. Its first standby and its first manager are the waiting processes, by the name of their module."""
    from taskd import run
    from taskd.launch import manager, standby

    def start(
        command: Sequence[str], env: Mapping[str, str], pass_fds: Sequence[int], **words: Any
    ) -> Waiting | subprocess.Popen[bytes]:
        at = command.index("-m") + 1
        if (one := waiting[command[at]]).line.fileno() >= 0:
            return one.become(command[at:], env, *pass_fds)
        return subprocess.Popen(command, env=env, pass_fds=pass_fds, **words)

    standby.subprocess = manager.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)  # type: ignore[assignment]
    sys.path[0] = os.getcwd()  # as with `python -m`
    run.command()


def asked(line: socket.socket) -> list[str]:
    """Wait until the launcher asks for this process. Return its words, or nothing if the launcher ends before."""
    from taskd import log

    request, descriptors, _, _ = socket.recv_fds(line, MOST_BYTES, 1)
    line.close()
    if not request:
        return []
    words, environment, descriptor = json.loads(request)
    os.dup2(descriptors[0], descriptor)
    os.set_inheritable(descriptor, True)
    if descriptors[0] != descriptor:
        os.close(descriptors[0])
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    log.configure()
    del sys.path[0]
    sys.argv[:] = words
    return [*words]


def be_standby(line: socket.socket) -> None:
    from taskd.launch import standby_process

    if words := asked(line):
        for name, number in (("stdout", 1), ("stderr", 2)):
            raw = open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115 - as `python -u` has them
            setattr(sys, name, io.TextIOWrapper(raw, errors=getattr(sys, name).errors, write_through=True))
        standby_process.main(words[1:])


def be_manager(line: socket.socket) -> None:
    from taskd.launch import child

    if words := asked(line):
        os.dup2(2, 1)
        child.main(words[1:])


def main() -> None:
    waiting = dict[str, Waiting]()
    for module, be in ((STANDBY, be_standby), (MANAGER, be_manager)):
        waiting[module] = Waiting()
        if not waiting[module].pid:
            for other in waiting.values():
                if other.pid:
                    other.line.close()
            be(waiting[module].line)
            return
    be_launcher(waiting)


if __name__ == "__main__":
    main()
