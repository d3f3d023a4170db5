"""Half a core for all tests together, and random pauses. This finds more races than a busy machine does by accident.

`pytest --starve` puts each process that runs tests, with all its children, into a cgroup with half a core. Now and then
it stops one of the tests' processes for a moment, as a virtual machine or a swapping system does. Tests of the gate do
not depend on a clock, so every failure here is a race. Where no cgroup can be made, there are only the pauses.

It judges nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

PERIOD_US = 100_000
QUOTA_US = 50_000
EVERY_S = 2.0
PAUSE_S = (0.05, 0.5)
begun = False
"""Whether this process starves its tests."""


class Starvation:
    """Starves the tests from its construction until `end`."""

    def __init__(self, processes: Callable[[], Iterable[int]]) -> None:
        """`processes` returns the processes of the tests at the moment of the call."""
        global begun
        begun = True
        self.processes = processes
        self.over = threading.Event()
        self.group = _group()
        self.random = random.Random()
        self.thread = threading.Thread(target=self._pause, daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.over.set()
        self.thread.join()
        if self.group:
            with contextlib.suppress(OSError):  # a process that a test left behind may still be in it
                (self.group.parent / "cgroup.procs").write_text(str(os.getpid()))
                self.group.rmdir()

    def _pause(self) -> None:
        while not self.over.wait(self.random.random() * EVERY_S):
            running = [pid for pid in self.processes() if _state(pid) not in ("T", "Z", "")]
            if not running:
                continue
            pid = self.random.choice(running)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self.over.wait(self.random.uniform(*PAUSE_S))
                os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def _group() -> Path | None:
    """Put this process into a cgroup with half a core and return it. None, and a message, if that is not allowed."""
    version_1 = Path("/sys/fs/cgroup/cpu")
    parent = version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")
    group = parent / f"taskd-starve-{os.getpid()}"
    try:
        group.mkdir()
        if parent == version_1:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
        else:
            (group / "cpu.max").write_text(f"{QUOTA_US} {PERIOD_US}")
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError as error:
        print(f"--starve: no group with half a core ({error}); there are pauses alone", file=sys.stderr)
        with contextlib.suppress(OSError):
            group.rmdir()
        return None
    return group
