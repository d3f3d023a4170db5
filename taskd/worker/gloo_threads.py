"""An exit handler that waits until the threads of gloo's groups have released their Python objects.

A thread of ProcessGroupGloo first tells its waiters that an operation is complete. Only then does it release the
operation and its tensors. On a busy machine the thread may be descheduled in between, while the main thread ends the
script. To release a tensor that Python knows, the thread needs the interpreter's lock. While the interpreter shuts
down, a thread that asks for this lock is ended at once, in the middle of C++ that cannot be unwound. So the whole
process aborts, after all its work was done (pytorch issue 190489). Destroying the group does not help while a DDP
module still holds it.

So the exit handler waits until each such thread is idle and waits for its next operation. The kernel shows this as a
futex wait without a time limit, at two looks with no turn of the thread in between. A thread may also be in an
operation whose result nobody waited for. It then waits for its peers, with a time limit and perhaps for ever, so it is
left alone after a short time without activity. Nothing here needs torch, and a process without such threads does not
wait.
It does NOT end a group, and knows nothing of guarded ones: their operations hold no tensor that Python knows.
"""

from __future__ import annotations

import atexit
import os
import time

NAME = "pt_gloo_runloop"
"""What torch calls these threads."""
WAIT_SECONDS = 2.0
"""The longest delay of a process' end; if all threads are idle, the delay is the time of one check."""
STILL_SECONDS = 0.05
"""Ten times as long as a thread that wants the interpreter's lock waits for its turn."""
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.0005, 0.01
_TASKS = "/proc/self/task"
_FUTEX = {"x86_64": "202", "s390x": "238", "ppc64le": "221"}.get(os.uname().machine, "98")
_WAIT_BITSET = 9
"""The futex operation of a condition variable; a mutex uses another one."""


def wait_at_exit() -> None:
    """Register the wait for the end of this process, once."""
    atexit.unregister(wait)
    atexit.register(wait)


def wait(seconds: float = WAIT_SECONDS) -> bool:
    """Wait at most `seconds`. Return whether all gloo threads are idle, or have been inactive in a timed wait."""
    threads = [task for task in _tasks() if _read(task, "comm") == NAME]
    began, pause = time.monotonic(), PAUSE_SECONDS
    seen: dict[str, tuple[str, float]] = {}
    resting: dict[str, str] = {}
    while True:
        threads = [task for task in threads if not _rests_on(task, resting)]
        now = time.monotonic()
        if all(_still_since(task, now, seen) + STILL_SECONDS <= now for task in threads):
            return True
        if now - began >= seconds:
            return False
        time.sleep(pause)  # there is no event to wait for, and the threads get the interpreter's lock meanwhile
        pause = min(2 * pause, PAUSE_MAX_SECONDS)


def _rests_on(task: str, resting: dict[str, str]) -> bool:
    """Whether the thread has ended, or waits for its next operation and has done so at the last look, without a turn
    in between. A thread that gives the interpreter's lock to another one waits without a time limit for a moment, too.
    `resting`: the turns that each thread had taken when it was seen waiting."""
    if not _rests(task):
        resting.pop(task, None)
        return False
    turns, before = _turns(task), resting.get(task)
    resting[task] = turns
    return turns in ("", before)


def _rests(task: str) -> bool:
    """Whether the thread waits for its next operation, or has ended."""
    call = _call(task)
    if not call:  # it has ended, or this kernel does not tell: then a sleeping thread counts as idle
        return _read(task, "stat").rpartition(")")[2][:2] in ("", " S")
    return _waits(call) and int(call[4], 16) == 0


def _still_since(task: str, now: float, seen: dict[str, tuple[str, float]]) -> float:
    """Return since when the thread has been inactive in a wait with a time limit; `now`: it is not in such a wait."""
    call = _call(task)
    sign = f"{call} {_turns(task)}" if _waits(call) else ""
    if not sign or seen.get(task, ("", 0.0))[0] != sign:
        seen[task] = (sign, now)
    return seen[task][1]


def _turns(task: str) -> str:
    """Return how often the thread has given up its processor by itself. Empty: it has ended."""
    return next((line for line in _read(task, "status").splitlines() if line.startswith("voluntary")), "")


def _call(task: str) -> list[str]:
    """Return the system call in which the thread sleeps, and its arguments; one word if the thread is running."""
    return _read(task, "syscall").split()


def _waits(call: list[str]) -> bool:
    """Whether this system call waits for a condition variable."""
    return len(call) > 4 and call[0] == _FUTEX and int(call[2], 16) & 0x7F == _WAIT_BITSET


def _tasks() -> list[str]:
    try:
        return os.listdir(_TASKS)
    except OSError:
        return []


def _read(task: str, name: str) -> str:
    try:
        with open(f"{_TASKS}/{task}/{name}", encoding="ascii", errors="replace") as file:
            return file.read().strip("\n")
    except OSError:
        return ""
