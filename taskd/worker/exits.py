"""Reports how a training process ends: in good order, or by an uncaught exception.

A normal end is reported to the agent before the interpreter shuts down. An uncaught exception is reported with its
first line, then Python's (or the user's) own handler runs; it runs first if the report may not return. If a script ends
itself with an exit code other than 0, neither is reported: the code tells enough. This module does not change the exit
code, print or delay anything. The interpreter cannot report some ends (a signal, os._exit, abort): the agent has to
notice these.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

Hook = Callable[[type[BaseException], BaseException, "TracebackType | None"], Any]


class ExitWatch:
    """Calls `leave()` at a normal end, `crash(sentence, show)` at an uncaught exception; at most one of them. `show`
    runs the handler that was there before, which is run afterwards in any case, but only once."""

    def __init__(self, leave: Callable[[], None], crash: Callable[[str, Callable[[], None]], None]) -> None:
        self._leave, self._crash = leave, crash
        self._before: Hook | None = None
        self._ended = False

    def install(self) -> None:
        """Install both hooks."""
        self._before = sys.excepthook
        sys.excepthook = self._uncaught
        atexit.register(self._at_exit)

    def keep_silent(self) -> None:
        """Report nothing: the script has ended itself with an exit code other than 0, which is no orderly end."""
        self._ended = True

    def remove(self) -> None:
        """Remove both hooks. If another hook was put over ours, it stays, and ours does nothing any more."""
        self._ended = True
        atexit.unregister(self._at_exit)
        if sys.excepthook == self._uncaught and self._before is not None:
            sys.excepthook = self._before

    def _at_exit(self) -> None:
        if not self._ended:
            self._ended = True
            self._leave()

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown = False

        def show() -> None:
            nonlocal shown
            if not shown:
                shown = True
                (self._before or sys.__excepthook__)(kind, error, trace)

        try:
            if not self._ended:
                self._ended = True
                with contextlib.redirect_stderr(sys.__stderr__):  # torch keeps what is said until its own hook returns
                    self._crash(first_line(kind, error), show)
        finally:
            show()


def first_line(kind: type[BaseException], error: BaseException) -> str:
    """Return the exception as one line: `ValueError: shapes differ`."""
    try:
        text = str(error).strip().splitlines()
    except Exception as broken:  # a user's own __str__
        text = [f"its text cannot be read ({type(broken).__name__})"]
    return f"{kind.__name__}: {text[0]}" if text else kind.__name__
