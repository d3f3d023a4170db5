"""The place in the script where this process is, in words: `at train.py:17 in fetch, train.py:80 in <module>`.

It is asked for if a rank makes no progress. A thread other than the training thread answers, so no signal interrupts a
wait of the training thread. A thread that never releases the interpreter's lock is not seen, because no other thread
can run.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType

from taskd.core.words import cut
from taskd.state.sources import passed_over
from taskd.worker import hooks

_MOST_CHARACTERS = 240
_MOST_LINES = 3
_Line = tuple[str, int, str]
"""File, line number, function."""


def _here() -> str:
    try:
        return os.path.join(os.getcwd(), "")
    except OSError:  # the folder is gone
        return ""


_HERE = _here()


def of_training() -> str:
    """Return the place of the training thread: the main thread, until another thread has marked a step."""
    try:
        frame = sys._current_frames().get(hooks.trained_in() or threading.main_thread().ident or 0)
        lines = _lines(frame)
    finally:
        frame = None  # otherwise the frame's variables might be destroyed in this thread
    return _words(lines)


def words_of(frame: FrameType | None) -> str:
    """Return the place of this frame and its callers."""
    return _words(_lines(frame))


def _lines(frame: FrameType | None) -> list[_Line]:
    """Read all frames at once: the other thread goes on as soon as this thread waits for anything."""
    found = list[_Line]()
    while frame is not None:
        code = frame.f_code
        found.append((code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name))
        frame = frame.f_back
    return found


def _words(lines: list[_Line]) -> str:
    own = [line for line in lines if not passed_over(line[0], line[2])][:_MOST_LINES] or lines[:1]
    return cut(f"at {', '.join(map(_word, own))}", _MOST_CHARACTERS) if own else ""


def _word(line: _Line) -> str:
    file, number, function = line
    name = file.removeprefix(_HERE) if _HERE and file.startswith(_HERE) else os.path.basename(file)
    return f"{name}:{number} in {function}"
