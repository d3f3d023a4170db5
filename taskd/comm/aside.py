"""Runs work that may block for ever on a thread of its own, and leaves the thread behind when it is no longer needed.

A new group waits for all its members, and one of them may be dying. This is a file of its own because groups are made
in two places, by a script and by a repair. In both places the caller must be able to stop waiting.

Nothing here polls by the clock. The code that takes an order calls `look()`, and each waiting caller then checks
whether the order concerns it. It does NOT end the work that it leaves behind: the begin of the next epoch does.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from taskd.errors import StepAbandoned

Result = TypeVar("Result")

_lock = threading.Lock()
_waiting: list[queue.SimpleQueue[Any]] = []


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent may have held it
    _waiting.clear()


os.register_at_fork(after_in_child=_after_fork)


def look() -> None:
    """Wake all callers that wait in `do`: an order was taken, and their work may not be needed any more."""
    with _lock:
        for told in _waiting:
            told.put(None)


def do(work: Callable[[], Result], is_over: Callable[[], bool], why: str) -> Result:
    """Return the result of `work`, or raise what it raises. Raises StepAbandoned with `why` once `is_over` is true."""
    told: queue.SimpleQueue[Callable[[], Result] | None] = queue.SimpleQueue()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            failure = error

            def ended() -> Result:
                raise failure
        else:

            def ended() -> Result:
                return result

        told.put(ended)

    with _lock:
        _waiting.append(told)
    try:
        threading.Thread(target=run, name="taskd-aside", daemon=True).start()
        while True:
            if is_over():  # this also sees an order that was taken just before
                raise StepAbandoned(why)
            ended = told.get()
            if ended is not None:
                return ended()
    finally:
        with _lock, contextlib.suppress(ValueError):  # a child that was forked in here has an empty list
            _waiting.remove(told)
