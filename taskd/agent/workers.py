"""The agent's records of this node's processes: connection, beat page, process descriptor, step time.

A process is known from the moment it connects or is started here. It is identified by its pid, which the kernel
confirms (SO_PEERCRED). It represents a rank only after the core has accepted it. Its page and its record files stay
open when it dies, so that they can still be read. This module only keeps these records; it does NOT decide which
process is accepted or dead.
"""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass, field

from taskd import _native
from taskd.agent.effort import Effort
from taskd.agent.rails import Rails
from taskd.backup.files import RecordFiles
from taskd.core.limits import MAX_RANKS_PER_NODE, MAX_TRANSPORTS
from taskd.core.messages import WorkerWelcome
from taskd.wire import local

CONNECTIONS_MAX = 8 * MAX_RANKS_PER_NODE
"""More than any node needs; further connections are refused."""
STEP_MS_MAX = 2**31


@dataclass(eq=False)
class Worker:
    """One process of this node."""

    pid: int
    pidfd: int
    start_time: int
    connection: socket.socket | None = None
    rank: int = -1  # -1: not accepted by the core
    incarnation: int = 0
    page: _native.Page | None = None
    key: int = -1  # its number in the death watch; -1: not watched
    leaving: bool = False  # it has announced an orderly end
    reported: bool = False  # its end was reported to the core
    check_at_ns: int = 0  # when to check again whether it is ending; 0: there is no doubt
    check_gap_ns: int = 0
    checks_until_ns: int = 0
    welcome: WorkerWelcome | None = None  # the last welcome that was sent to it
    order: tuple[int, int] = (-1, -1)  # the last order written into its page
    last_step: int = -1
    last_step_ns: int = 0
    step_ms: int = 0
    counters: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """For each transport with rails: the number of its counters in Rails, and their file's device and inode."""
    effort: Effort = field(init=False)

    def __post_init__(self) -> None:
        self.effort = Effort(self.pid)

    def note_step(self, step: int, progress_ns: int, parked: bool = False) -> int:
        """The duration of a step in ms, measured between changes of the step number; 0: not known yet.

        A step in which the process was parked is not measured: it says nothing about the next steps."""
        if parked:
            self.last_step = -1
        elif step != self.last_step:
            if 0 <= self.last_step < step and progress_ns > self.last_step_ns:
                each = (progress_ns - self.last_step_ns) // (step - self.last_step)
                self.step_ms = max(1, min(each // 1_000_000, STEP_MS_MAX))
            self.last_step, self.last_step_ns = step, progress_ns
        return self.step_ms


@dataclass(eq=False)
class Workers:
    """All processes of this node, by pid and by rank, and the record files by rank."""

    by_pid: dict[int, Worker] = field(default_factory=dict)
    by_rank: dict[int, Worker] = field(default_factory=dict)
    by_key: dict[int, Worker] = field(default_factory=dict)
    records: RecordFiles = field(default_factory=RecordFiles)
    watch: _native.DeathWatch = field(default_factory=_native.DeathWatch)
    rails: Rails = field(default_factory=Rails)
    _keys: int = 0

    def meet(self, pid: int) -> Worker | None:
        """The record of this process, a new one if necessary; None when the process is already gone."""
        known = self.by_pid.get(pid)
        if known is not None and _native.exit_state(pid, known.start_time).state != "gone":
            return known
        try:
            start_time = _native.process_start_time(pid)
            pidfd = os.pidfd_open(pid)
        except OSError:
            return None
        if known is not None:
            self.drop(known)
        _native.close_on_fork(pidfd)
        worker = self.by_pid[pid] = Worker(pid, pidfd, start_time)
        return worker

    def seat(self, worker: Worker, rank: int, incarnation: int) -> None:
        """Let this process represent the rank, and watch for its end. The core has accepted it."""
        before = self.by_rank.get(rank)
        if before is not None and before is not worker:
            before.rank = -1
        if worker.rank != rank:
            self.by_rank.pop(worker.rank, None)
        worker.rank, worker.incarnation = rank, incarnation
        worker.leaving = worker.reported = False
        self.by_rank[rank] = worker
        if worker.page is not None and worker.key < 0:
            self._keys += 1
            worker.key = self._keys
            self.by_key[worker.key] = worker
            self.watch.add(worker.page, worker.key)

    def show_page(self, worker: Worker, page: _native.Page) -> None:
        """Keep this process' page. It has a new one after it has left and come back."""
        if worker.page is not None and _same_file(worker.page.fd, page.fd):
            return
        self._unwatch(worker)
        worker.page, worker.order = page, (-1, -1)
        worker.last_step, worker.step_ms = -1, 0

    def show_counters(self, worker: Worker, transport: str, fd: int) -> None:
        """Keep the rail counters of one of this process' transports. Raises ValueError or OSError if they cannot be
        read."""
        status = os.fstat(fd)
        known = worker.counters.get(transport)
        if known is not None and known[1:] == (status.st_dev, status.st_ino):
            return
        if known is None and len(worker.counters) >= MAX_TRANSPORTS:
            raise ValueError(f"a process may have {MAX_TRANSPORTS} transports with rails, {transport} is one more")
        number = self.rails.add(fd)
        if known is not None:
            self.rails.remove(known[0])
        worker.counters[transport] = (number, status.st_dev, status.st_ino)

    def hang_up(self, worker: Worker) -> None:
        """Close the process' connection; its record stays."""
        if worker.connection is not None:
            with contextlib.suppress(OSError):
                _native.keep_on_fork(worker.connection.fileno())
            worker.connection.close()
            worker.connection = None

    def drop(self, worker: Worker) -> None:
        """Forget a process that is gone."""
        self.hang_up(worker)
        self._unwatch(worker)
        for number, _, _ in worker.counters.values():
            self.rails.remove(number)
        _native.keep_on_fork(worker.pidfd)
        os.close(worker.pidfd)
        if self.by_pid.get(worker.pid) is worker:
            del self.by_pid[worker.pid]
        if self.by_rank.get(worker.rank) is worker:
            del self.by_rank[worker.rank]

    def close(self) -> None:
        """Close everything."""
        for worker in list(self.by_pid.values()):
            self.drop(worker)
        self.records.close()
        self.watch.close()

    def _unwatch(self, worker: Worker) -> None:
        if worker.key >= 0:
            self.watch.remove(worker.key)
            del self.by_key[worker.key]
            worker.key = -1


class Reception:
    """The listening socket, which accepts connections of processes that have not said hello yet."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.listener.setblocking(False)
        self.refused = 0
        _native.close_on_fork(listener.fileno())

    def accept(self, count: int) -> tuple[socket.socket, int] | None:
        """A new connection and the pid of its process; None when none waits, or when it is refused."""
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return None
        pid, _uid = local.peer(connection)
        if count >= CONNECTIONS_MAX or not local.same_user(connection) or pid <= 0:
            self.refused += 1
            connection.close()
            return None
        connection.setblocking(False)
        _native.close_on_fork(connection.fileno())
        return connection, pid

    def close(self) -> None:
        """Release the socket's name: a process that comes now starts another agent."""
        if self.listener.fileno() >= 0:
            _native.keep_on_fork(self.listener.fileno())
            self.listener.close()


def _same_file(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
