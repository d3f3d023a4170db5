"""Does what may block for ever on a thread of its own, and leaves it there when nobody needs it any more.

A group waits for all its members, and one of them may be dying. Alone in this file because groups are made in two
places, a script's own and a repair, and both must get out.

It does NOT end what it leaves behind: whoever begins the next epoch does.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from taskd.errors import StepAbandoned

LOOK_S = 0.02
"""How often to ask whether it is still needed."""
Result = TypeVar("Result")


def do(work: Callable[[], Result], is_over: Callable[[], bool], why: str) -> Result:
    """The result of `work`, or what it raises. Raises StepAbandoned with `why` once `is_over` says so."""
    ended: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            ended.put((work(), None))
        except BaseException as error:
            ended.put((None, error))

    threading.Thread(target=run, name="taskd-aside", daemon=True).start()
    while True:
        try:
            result, error = ended.get(timeout=LOOK_S)
        except queue.Empty:
            if is_over():
                raise StepAbandoned(why) from None
            continue
        if error is not None:
            raise error
        return result  # type: ignore[return-value]
