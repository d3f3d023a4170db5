"""Finds out from outside what a rank without progress is doing: its process may be unable to say so itself.

A rank is inspected only if its page shows no progress for a while, and then four times a second. The process is not
disturbed. The agent reads /proc, and asks the process where in its script it is. A taskd thread in the process answers.
If the question is not read, its Python threads do not run. Failure modes: a rank that waits for its loader's processes,
or whose other threads work, is itself working; a rank that gets no processor does not sleep; a sleeping rank has taskd
threads that use a little processor time. So the processor time of all its threads and of the processes that it has
started is counted together, over two seconds. It does NOT judge: core/hangs.py does.
"""

from __future__ import annotations

import os
import platform
from collections import deque
from collections.abc import Callable
from pathlib import Path

from taskd import _native
from taskd.agent.effort import BUSY_SHARE, MOVED_BYTES, TICK_NS, moved_bytes
from taskd.agent.workers import Worker, Workers
from taskd.core.limits import MAX_TEXT, MS, STILL_LOOK_NS, STILL_NS
from taskd.core.messages import Place, Still
from taskd.core.types import Doing, PageFlag, Phase
from taskd.core.words import cut
from taskd.processes import started_by
from taskd.wire import local

ASK_NS = 2_000_000_000
"""A process that has read the last question is asked again after this time."""
WINDOW_NS = 2_000_000_000
LEAST_USED_NS = 3 * TICK_NS
"""Processor time is measured over WINDOW_NS, and less than LEAST_USED_NS never counts as work.

The system counts in ticks of 10 ms, and taskd's own threads use one now and then."""
MOST_PROCESSES = 64
"""How many of the processes that a rank has started are inspected."""
_OUTSIDE = {"T": Doing.STOPPED, "t": Doing.TRACED}
"""By the letter of a process' state in /proc."""
_INSIDE = {Doing.WORKS: "works", Doing.SLEEPS: "sleeps", Doing.BLOCKED: "is held in the kernel"}
_FOR_GOOD_REASON = (Phase.PARKED, Phase.DONE)
_CALLS = {
    "x86_64": (
        "0 read 1 write 7 poll 17 pread64 18 pwrite64 20 writev 23 select 35 nanosleep 42 connect 43 accept 44 sendto "
        "45 recvfrom 46 sendmsg 47 recvmsg 61 wait4 72 fcntl 73 flock 74 fsync 75 fdatasync 202 futex 230 "
        "clock_nanosleep 232 epoll_wait 247 waitid 257 openat 270 pselect6 271 ppoll 281 epoll_pwait"
    ),
    "aarch64": (
        "22 epoll_pwait 25 fcntl 32 flock 56 openat 63 read 64 write 66 writev 67 pread64 68 pwrite64 72 pselect6 73 "
        "ppoll 82 fsync 83 fdatasync 95 waitid 98 futex 101 nanosleep 115 clock_nanosleep 202 accept 203 connect 206 "
        "sendto 207 recvfrom 211 sendmsg 212 recvmsg 260 wait4"
    ),
}.get(platform.machine(), "")
_NAMES = dict(zip(_CALLS.split()[::2], _CALLS.split()[1::2], strict=True))
"""System calls in which a process waits, by number."""
_OF_A_FILE = frozenset(("read", "write", "writev", "pread64", "pwrite64", "fcntl", "flock", "fsync", "fdatasync"))
_OF_A_FILE |= {"connect", "accept", "sendto", "recvfrom", "sendmsg", "recvmsg"}


class StillWatch:
    """Watches the processes of one node that make no progress."""

    def __init__(self, workers: Workers) -> None:
        self.ask_stack: Callable[[Worker], None] = lambda _worker: None
        """Asks a process where in its script it is."""
        self._workers = workers
        self._looks: dict[int, _Look] = {}  # by process

    def read(
        self, worker: Worker, beat: _native.Beat, now: int, carried: int
    ) -> tuple[Still | None, tuple[Place, ...]]:
        """The state of this rank, and its places in its process groups.

        The state is None if the rank makes progress or waits for a good reason. `carried`: how many bytes the node's
        rails have carried so far."""
        age_ns = now - beat.progress_ns
        if worker.page is None or age_ns < STILL_NS or beat.progress_ns <= 0 or beat.phase in _FOR_GOOD_REASON:
            self._looks.pop(worker.pid, None)
            return None, ()
        look = self._looks.get(worker.pid)
        if look is None or look.mark != beat.progress_ns:
            self._looks = {pid: known for pid, known in self._looks.items() if pid in self._workers.by_pid}
            look = self._looks[worker.pid] = _Look(worker, beat.progress_ns)
        groups = worker.page.read_groups()
        places = tuple(Place(worker.rank, one.group, one.kind, *_count(one)) for one in groups)
        waits = any(place.left != place.entered for place in places)
        if look.due(now):
            look.look(now, waits, carried if waits else 0)
            look.explain(now, waits, bool(beat.flags & PageFlag.COMPILING), self.ask_stack)
        since = beat.beat_ns if look.doing in _OUTSIDE.values() else look.since  # a stopped process does not beat
        doing_ms = max(now - since, 0) // MS
        who = (worker.rank, worker.incarnation, beat.progress_ns)
        stale = look.doing is Doing.HOLDS_GIL or look.doing in _OUTSIDE.values()  # it has gone on since it told
        words = " ".join(filter(None, (look.words, "" if stale else look.stack)))
        return Still(*who, age_ns // MS, look.doing, doing_ms, cut(words, MAX_TEXT)), places

    def stack_told(self, worker: Worker, words: str) -> None:
        """Keep the stack that this process has reported."""
        look = self._looks.get(worker.pid)
        if look is not None:
            look.stack = words


def _count(one: _native.GroupBeat) -> tuple[int, int]:
    """The two sequence numbers, limited to the size of their fields: a page may hold any number."""
    return min(one.sequence, 2**63 - 1), min(one.left_sequence, 2**63 - 1)


class _Look:
    """The observations of one process since its last progress."""

    def __init__(self, worker: Worker, mark: int) -> None:
        self.mark = mark
        self.doing, self.words, self.stack = Doing.UNSEEN, "", ""
        self.since = 0  # since when it does so
        self._worker = worker
        self._seen, self._call = Doing.UNSEEN, ""
        self._looked_at = -1
        self._samples: deque[tuple[int, int, int]] = deque()  # time, processor time used, bytes moved
        self._asked_at = -1

    def due(self, now: int) -> bool:
        """Whether it is time to look again."""
        return self._looked_at < 0 or now - self._looked_at >= STILL_LOOK_NS

    def look(self, now: int, waits: bool, carried: int) -> None:
        """Observe the state of the process and its use of the machine.

        `waits`: it is inside a collective and waits for that, so its children and system call are not inspected."""
        pid = self._worker.pid
        state, used_ns = _state(pid)
        self._looked_at, self._seen, self._call = now, Doing.UNSEEN, ""
        if state in _OUTSIDE:
            self._seen = _OUTSIDE[state]
        if not state or state in _OUTSIDE:
            return
        moved = moved_bytes(pid) + carried
        for child in [] if waits else started_by(pid, MOST_PROCESSES):
            its_state, its_use_ns = _state(child)
            used_ns += its_use_ns
            moved += moved_bytes(child)
            state = "D" if its_state == "D" and state == "S" else state
        self._samples.append((now, used_ns, moved))
        while len(self._samples) > 2 and now - self._samples[1][0] >= WINDOW_NS:
            self._samples.popleft()
        since, used_before_ns, moved_before = self._samples[0]
        if since == now:
            return
        # A sum smaller than before means that a process that it had started has ended.
        used_ns, moved = abs(used_ns - used_before_ns), abs(moved - moved_before)
        if used_ns >= max(LEAST_USED_NS, (now - since) // BUSY_SHARE) or moved >= MOVED_BYTES or state == "R":
            self._seen = Doing.WORKS
            return
        self._seen = Doing.BLOCKED if state == "D" else Doing.SLEEPS
        self._call = "" if waits else _call(pid)

    def explain(self, now: int, waits: bool, compiles: bool, ask_stack: Callable[[Worker], None]) -> None:
        """Conclude from the last look what the process is doing."""
        doing, words = self._seen, self._call
        holds_gil = doing in _INSIDE and self._leaves_question(now, waits, ask_stack)
        if compiles and doing not in _OUTSIDE.values():
            doing, words = Doing.COMPILES, ""
        elif holds_gil and not waits:
            doing, words = Doing.HOLDS_GIL, " ".join(filter(None, ("and", _INSIDE[doing], words)))
        if doing is not self.doing:
            self.since = now
        self.doing, self.words = doing, words

    def _leaves_question(self, now: int, once: bool, ask_stack: Callable[[Worker], None]) -> bool:
        """Whether a question has stayed unread for long, although a Python thread of the process should have read it.

        Asks the process where it is: from time to time, or only `once`."""
        if self._worker.connection is None:
            return False
        lies = local.unread(self._worker.connection) > 0
        if not lies and (self._asked_at < 0 or (not once and now - self._asked_at >= ASK_NS)):
            self._asked_at = now
            ask_stack(self._worker)
            return False
        return lies and 0 <= self._asked_at <= now - STILL_LOOK_NS


def _state(pid: int) -> tuple[str, int]:
    """The letter of the main thread's state, and the processor time of all threads; empty when the process is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], sum(map(int, fields[11:15])) * TICK_NS  # its own, and that of children it has waited for
    except (OSError, ValueError, IndexError):
        return "", 0


def _call(pid: int) -> str:
    """The system call in which its main thread waits, like `in read of /data/fifo`; empty if it cannot be read."""
    try:
        number, *arguments = Path(f"/proc/{pid}/syscall").read_text().split()
        name = _NAMES.get(number, "")
        if name not in _OF_A_FILE or not arguments:
            return f"in {name}" if name else ""
        what = os.readlink(f"/proc/{pid}/fd/{int(arguments[0], 16)}")
    except (OSError, ValueError):
        return ""
    kind = what.partition(":[")[0]
    return f"in {name} of {what if kind == what else f'a {kind}'}"
