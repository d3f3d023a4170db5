"""Confirms deaths: turns a hint (a released futex, a silent beat, a closed connection) into `Gone` with its exit code.

The hints come before the kernel has freed the process' memory. So detection is quick for a process of any size. The
exit code is read from /proc at that very moment. A hint may be wrong (exec, a thread's end). So a process that still
lives is inspected a few times again, first soon and then rarely. The pidfd only closes the record.

Where the agent is the launcher, a process may leave in good order and then die of a signal while its interpreter shuts
down. It counts as ended well. Its script and its exit handlers had finished, and an interpreter's shutdown does no work
that the job needs.
It does NOT act on a death.
"""

from __future__ import annotations

import fcntl
import signal
import struct
import time
from collections.abc import Callable

from taskd import _native
from taskd.agent.memory_kills import MemoryKills
from taskd.agent.workers import Worker, Workers
from taskd.core.events import Gone
from taskd.core.limits import MS, SECOND
from taskd.core.words import exit_words

CONFIRM_NS = 2 * MS
"""How long the loop may spend on one process before it turns to the others."""
CHECK_FIRST_NS = 2 * MS
CHECKS_NS = 2 * SECOND
"""A hint is checked for this long. After that it counts as wrong, and a new hint may come."""
SILENCE_MIN_NS = 250 * MS
SILENCE_PERIODS = 5
UNKNOWN_EXIT = 255
"""Stands for an exit code that can no longer be read."""

_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO = struct.Struct("=QQ11Ii")


class Deaths:
    """Collects confirmed deaths; the loop hands them to the core."""

    def __init__(
        self,
        workers: Workers,
        reap: Callable[[int], int | None] | None,
        excuse: Callable[[int], None] | None = None,
        memory: MemoryKills | None = None,
    ) -> None:
        """`reap` and `excuse` come from a launcher. `reap` returns the exit code of a child. `excuse` is called when a
        child has left in good order: a crash of its interpreter is then no failure. `memory`: reports kills for memory.
        """
        self.hear: Callable[[Worker], None] = lambda _worker: None
        """Reads the unread messages of a process: its last one may have arrived together with its end."""
        self._workers = workers
        self._reap, self._excuse, self._memory = reap, excuse, memory
        self._found: list[Gone] = []
        self._ended: list[Worker] = []

    def take(self, now_ns: int) -> None:
        """Take the news of the death watch."""
        for death in self._workers.watch.take():
            worker = self._workers.by_key.get(death.key)
            if worker is None or worker.reported:
                continue
            if death.kind == "left":
                self._report(worker, 0, "it has left the job and goes on without taskd")
                continue
            state = _native.confirm_exit(worker.pid, worker.start_time, CONFIRM_NS)
            if not self._judge(worker, state):
                self.doubt(worker, now_ns)

    def doubt(self, worker: Worker, now_ns: int) -> None:
        """Check this process soon and repeatedly, because something suggests that it is ending."""
        if worker.reported or worker.check_at_ns:
            return
        worker.check_at_ns, worker.check_gap_ns = now_ns, CHECK_FIRST_NS
        worker.checks_until_ns = now_ns + CHECKS_NS

    def ended(self, worker: Worker) -> None:
        """Close the record of this process: its memory is gone now, too."""
        self._ended.append(worker)  # first, for its descriptor stays readable
        if not worker.reported and worker.rank >= 0 and not self._judge(worker, self._state(worker)):
            self._report(worker, None)
        if self._reap is not None:
            self._reap(worker.pid)

    def found(self, now_ns: int) -> list[Gone]:
        """Check the doubtful processes that are due. Returns all deaths confirmed since the last call."""
        for worker in list(self._workers.by_rank.values()):
            if not worker.check_at_ns or now_ns < worker.check_at_ns:
                continue
            if worker.reported or self._judge(worker, self._state(worker)) or now_ns >= worker.checks_until_ns:
                worker.check_at_ns = 0
            else:
                worker.check_gap_ns *= 2
                worker.check_at_ns = now_ns + worker.check_gap_ns
        found, self._found = self._found, []
        return found

    def forget(self) -> None:
        """Drop the records of processes whose end was reported to the core."""
        for worker in self._ended:
            self._workers.drop(worker)
        self._ended = []

    def next_check_ns(self) -> int | None:
        """When `found` must be called again because of a doubtful process."""
        return min((w.check_at_ns for w in self._workers.by_rank.values() if w.check_at_ns), default=None)

    @staticmethod
    def overdue_ns(period_ns: int) -> int:
        """The age of the last beat from which on the process is checked: a process that dumps core does not beat."""
        return max(SILENCE_MIN_NS, SILENCE_PERIODS * min(max(period_ns, 0), SECOND))

    def _state(self, worker: Worker) -> _native.ExitState:
        return _native.exit_state(worker.pid, worker.start_time)

    def _judge(self, worker: Worker, state: _native.ExitState) -> bool:
        if state.state == "alive":
            return False
        if state.exit_code is None and state.state == "exiting":
            return False  # its code comes with the next look
        self._report(worker, state.exit_code)
        return True

    def _report(self, worker: Worker, code: int | None, reason: str = "") -> None:
        worker.reported, worker.check_at_ns = True, 0
        told = UNKNOWN_EXIT if code is None else code, reason
        try:
            self.hear(worker)
            told = self._explain(worker, code, reason)
        finally:  # whatever breaks on the way, the process is gone, and nobody looks at it again
            self._found.append(Gone(worker.rank, worker.incarnation, *told))

    def _explain(self, worker: Worker, code: int | None, reason: str) -> tuple[int, str]:
        """Return the exit code that counts, and why the process ended if that is known."""
        if worker.leaving and code != 0 and self._excuse is not None:
            self._excuse(worker.pid)
            if code is not None and code < 0:
                code, reason = 0, f"it had left in good order, and {exit_words(code)} ended its interpreter"
        if code is None and self._reap is not None:
            code = self._reap(worker.pid)
        if code is None:
            code = reaped_code(worker.pidfd)
        if code is None:
            code = 0 if worker.leaving else UNKNOWN_EXIT
            reason = "its exit code was taken by its parent before it could be read"
        if code == -signal.SIGKILL and self._memory is not None:
            reason = self._memory.why(time.monotonic_ns()) or reason
        return code, reason


def reaped_code(pidfd: int) -> int | None:
    """The exit code of a process that its parent has already reaped; None if it is not reaped, or before Linux 6.15."""
    try:
        asked = _PIDFD_INFO.pack(_PIDFD_INFO_EXIT, *[0] * 13)
        answer = _PIDFD_INFO.unpack(fcntl.ioctl(pidfd, _PIDFD_GET_INFO, asked))
    except OSError:
        return None
    mask, status = answer[0], answer[-1]
    if not mask & _PIDFD_INFO_EXIT:
        return None
    return -(status & 0x7F) if status & 0x7F else (status >> 8) & 0xFF
