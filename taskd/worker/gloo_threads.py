"""Before the interpreter ends: waits until the threads of gloo's groups have let go of what is Python's.

A thread of ProcessGroupGloo tells its waiters that an operation is through, and only then lets go of the operation and
its tensors. On a busy machine it may be off the processor in between while the main thread ends the script. To let go
of a tensor that Python knows it needs the interpreter's lock, and who asks for that of an interpreter which is being
taken down is ended on the spot, in the middle of C++ that cannot be unwound: the whole process aborts, after all its
work was done (pytorch issue 190489). Destroying the group does not help while a DDP module still holds it.

So an exit handler waits until each such thread rests where it waits for its next operation: the kernel shows that it
waits for a futex, with no time limit. An operation that nobody has waited for waits for its peers, with a limit, and
may do so for ever: it is left alone after a moment in which it did not stir. Nothing here needs torch, and a process
without such threads waits for nothing.
It does NOT end a group, and knows nothing of guarded ones: their operations hold no tensor that Python knows.
"""

from __future__ import annotations

import atexit
import os
import time

NAME = "pt_gloo_runloop"
"""What torch calls these threads."""
WAIT_SECONDS = 2.0
"""The most that the end of a process is delayed; where all threads rest, it is the time of one look."""
STILL_SECONDS = 0.05
"""Ten times as long as a thread that waits for the interpreter's lock stays without a turn."""
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 0.0005, 0.01
_TASKS = "/proc/self/task"
_FUTEX = {"x86_64": "202", "s390x": "238", "ppc64le": "221"}.get(os.uname().machine, "98")
_WAIT_BITSET = 9
"""The futex operation of a condition variable; a mutex has another."""


def wait_at_exit() -> None:
    """Wait when this process ends, once."""
    atexit.unregister(wait)
    atexit.register(wait)


def wait(seconds: float = WAIT_SECONDS) -> bool:
    """Whether all of them rest, or wait for nothing that comes from here, within this time."""
    threads = [task for task in _tasks() if _read(task, "comm") == NAME]
    began, pause = time.monotonic(), PAUSE_SECONDS
    seen: dict[str, tuple[str, float]] = {}
    while True:
        threads = [task for task in threads if not _rests(task)]
        now = time.monotonic()
        if all(_still_since(task, now, seen) + STILL_SECONDS <= now for task in threads):
            return True
        if now - began >= seconds:
            return False
        time.sleep(pause)  # there is no event for it; and they get the interpreter's lock meanwhile
        pause = min(2 * pause, PAUSE_MAX_SECONDS)


def _rests(task: str) -> bool:
    """It waits for its next operation, or is gone."""
    call = _call(task)
    if not call:  # gone, or this kernel does not say: then one that sleeps is taken for one that rests
        return _read(task, "stat").rpartition(")")[2][:2] in ("", " S")
    return _waits(call) and int(call[4], 16) == 0


def _still_since(task: str, now: float, seen: dict[str, tuple[str, float]]) -> float:
    """Since when it has waited with a time limit and not stirred; `now` if it does not."""
    call = _call(task)
    turns = next((line for line in _read(task, "status").splitlines() if line.startswith("voluntary")), "")
    sign = f"{call} {turns}" if _waits(call) else ""
    if not sign or seen.get(task, ("", 0.0))[0] != sign:
        seen[task] = (sign, now)
    return seen[task][1]


def _call(task: str) -> list[str]:
    """The system call that it sleeps in and its arguments; one word when it is running."""
    return _read(task, "syscall").split()


def _waits(call: list[str]) -> bool:
    """This is a condition variable that is waited for."""
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
