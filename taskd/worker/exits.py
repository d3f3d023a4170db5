"""How a training process ends: in good order, or by an exception that nobody caught.

A normal end says so to the agent before the interpreter is taken down; an uncaught exception is reported with its first
line, then Python's (or the user's) own handler runs. A script that ends itself with an exit code other than 0 says
neither: that code is its word. None of it changes the exit code, prints or delays anything. What no interpreter can
tell (a signal, os._exit, abort) is the agent's to see.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

Hook = Callable[[type[BaseException], BaseException, "TracebackType | None"], Any]


class ExitWatch:
    """Calls `leave()` at a normal end, `crash(sentence)` at an uncaught exception; at most one of them."""

    def __init__(self, leave: Callable[[], None], crash: Callable[[str], None]) -> None:
        self._leave, self._crash = leave, crash
        self._before: Hook | None = None
        self._ended = False

    def install(self) -> None:
        """Put both hooks in."""
        self._before = sys.excepthook
        sys.excepthook = self._uncaught
        atexit.register(self._at_exit)

    def keep_silent(self) -> None:
        """The script has failed by an exit code of its own: the end that follows is not in good order."""
        self._ended = True

    def remove(self) -> None:
        """Take them out again; a hook that somebody put over ours stays, and ours falls silent."""
        self._ended = True
        atexit.unregister(self._at_exit)
        if sys.excepthook == self._uncaught and self._before is not None:
            sys.excepthook = self._before

    def _at_exit(self) -> None:
        if not self._ended:
            self._ended = True
            self._leave()

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        try:
            if not self._ended:
                self._ended = True
                self._crash(first_line(kind, error))
        finally:
            (self._before or sys.__excepthook__)(kind, error, trace)


def first_line(kind: type[BaseException], error: BaseException) -> str:
    """`ValueError: shapes differ`: the exception as one line."""
    try:
        text = str(error).strip().splitlines()
    except Exception as broken:  # a user's own __str__
        text = [f"its text cannot be read ({type(broken).__name__})"]
    return f"{kind.__name__}: {text[0]}" if text else kind.__name__
