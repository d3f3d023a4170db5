"""Does what may block for ever on a thread of its own, and leaves it there when nobody needs it any more.

A group waits for all its members, and one of them may be dying. Alone in this file because groups are made in two
places, a script's own and a repair, and both must get out.

Nothing here asks by the clock: whoever takes an order calls `look()`, and those who wait ask whether it concerns them.
It does NOT end what it leaves behind: whoever begins the next epoch does.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from taskd.errors import StepAbandoned

Result = TypeVar("Result")

_lock = threading.Lock()
_waiting: list[queue.SimpleQueue[Any]] = []


def look() -> None:
    """An order was taken: whoever waits here may not be needed any more."""
    with _lock:
        for told in _waiting:
            told.put(None)


def do(work: Callable[[], Result], is_over: Callable[[], bool], why: str) -> Result:
    """The result of `work`, or what it raises. Raises StepAbandoned with `why` once `is_over` says so."""
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
            if is_over():  # also what was ordered just before
                raise StepAbandoned(why)
            ended = told.get()
            if ended is not None:
                return ended()
    finally:
        with _lock:
            _waiting.remove(told)
