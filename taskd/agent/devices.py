"""Watches the node's devices, through a process that asks their libraries (taskd/devices).

A vendor's library may be missing, hang, crash or lie. What follows:

- *There are no devices* (no file of a driver in /dev): no process is started.
- *The library is missing or does not work*: this is logged once, as information. There are no events then.
- *It hangs*: its process gives no sign of life. It is killed, and started again some time later. It is not waited for,
  since a process in a hanging driver cannot be killed. The agent never waits for it.
- *It crashes*: the process is started again, a few times at most.
- *It writes nonsense*: the line is counted and ignored.

The driver may number processes in another way (containers). So it is added to each event which ranks have a device
open at all. Not here: what an event means (taskd/devices), and what follows from it (core).
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from taskd import _native, log
from taskd.core.budget import Budget
from taskd.core.events import DeviceSeen
from taskd.core.limits import SECOND
from taskd.devices import lines
from taskd.devices.choice import FILES

PATIENCE_NS = 60 * SECOND
"""A process without a sign of life for this long hangs. A driver needs a while to start, and to recover a device."""
STARTS, STARTS_WITHIN_NS, PAUSE_NS = 4, 3_600 * SECOND, 10 * SECOND
"""How often it is started within this time; the third start and later ones wait longer and longer."""
GONE_S = 0.2
"""A process that was killed is gone after this time, unless it is inside a driver that hangs."""
_logger = log.get(__name__)


class DeviceWatch:
    """The process of one node's devices."""

    def __init__(
        self,
        kind: str,
        pids: Callable[[], Iterable[int]],
        post: Callable[[DeviceSeen], object],
        patience_ns: int = PATIENCE_NS,
    ) -> None:
        """`kind`: the devices, by the name of their source; empty: there are none. `pids`: the ranks' processes."""
        self._kind, self._pids, self._post, self._patience_ns = kind, pids, post, patience_ns
        self._budget = Budget(STARTS, STARTS_WITHIN_NS, PAUSE_NS)
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._heard_ns = 0
        self.nonsense = 0
        """How many lines could not be read."""

    @property
    def fd(self) -> int:
        """Readable when there is news; -1: there is no process."""
        return self._process.stdout.fileno() if self._process is not None and self._process.stdout is not None else -1

    def next_check_ns(self) -> int | None:
        """When `tend` has to be called next."""
        if not self._kind:
            return None
        now = time.monotonic_ns()
        return self._heard_ns + self._patience_ns if self._process is not None else self._budget.free_at(now)

    def tend(self, now: int) -> None:
        """Start the process if it is to run, and kill it if it hangs."""
        if not self._kind:
            return
        if self._process is None:
            if self._budget.take(now):
                self._start(now)
        elif now - self._heard_ns >= self._patience_ns:
            self._say(f"the library has not answered for {self._patience_ns // SECOND} s")
            self.close()

    def serve(self) -> None:
        """Read what the process has written."""
        try:
            data = os.read(self.fd, lines.LINE_BYTES_MAX)
        except BlockingIOError:
            return
        if not data:
            assert self._process is not None
            self.close()
            self._say("the process that asks them has ended")
            return
        self._heard_ns = time.monotonic_ns()
        *whole, self._unread = (self._unread + data).split(b"\n")
        self._unread = self._unread[-lines.LINE_BYTES_MAX :]
        holders: dict[int, bool] = {}  # many events may come at once, and a process may have many files
        for line in whole:
            self._take(line, holders)

    def close(self) -> None:
        """Kill the process, without waiting for one that cannot be killed."""
        process, self._process, self._unread = self._process, None, b""
        if process is None:
            return
        assert process.stdout is not None
        _native.keep_on_fork(process.stdout.fileno())
        process.stdout.close()
        process.kill()
        try:
            process.wait(GONE_S)
        except subprocess.TimeoutExpired:
            _logger.info("process %d hangs inside the driver of the devices and cannot be ended", process.pid)

    def _start(self, now: int) -> None:
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        # Safe: a file beside the script may have the name of a module of Python.
        environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": path}
        command = [sys.executable, "-m", "taskd.devices", str(os.getpid()), self._kind]
        quiet = subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                command, env=environment, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet, start_new_session=True
            )
        except OSError as error:
            self._say(str(error))
            return
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        _native.close_on_fork(self._process.stdout.fileno())
        self._heard_ns = now

    def _take(self, line: bytes, known: dict[int, bool]) -> None:
        """`known`: whether processes have a device open, as far as they were asked since the agent woke up."""
        try:
            found = lines.read(line)
        except ValueError:
            self.nonsense += 1
            return
        if isinstance(found, str):
            self._say(found)
            self._kind = ""
            self.close()
        elif found is not None:
            pids = [*self._pids()]
            if set(pids).isdisjoint(found.pids):  # else it is known who uses the device
                known.update({pid: has_open(pid, self._kind) for pid in pids if pid not in known})
                found = replace(found, holders=tuple(pid for pid in pids if known[pid]))
            self._post(found)

    def _say(self, why: str) -> None:
        log.once(_logger, logging.INFO, f"devices {why}", "events of this node's devices are not seen: %s", why)


def has_open(pid: int, kind: str, proc: str = "/proc") -> bool:
    """Whether this process has opened a device of this kind."""
    folder = f"{proc}/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:  # it has gone
        return False
    for name in names:
        try:
            target = os.readlink(f"{folder}/{name}")
        except OSError:  # it has closed this file just now
            continue
        if target.startswith("/dev/") and FILES[kind].fullmatch(target[5:]):
            return True
    return False
