"""Where in the script this process is, in words: `at data.py:17 in fetch, train.py:80 in <module>`.

Asked for where a rank makes no progress, and told by a thread beside the one that trains: no signal interrupts what
that waits for. A thread that keeps the interpreter's lock to itself is not seen, as nobody else can run.
"""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType

from taskd.core.words import cut
from taskd.state.sources import passed_over

_MOST_CHARACTERS = 240
_LINES = 3


def of_main_thread() -> str:
    """The innermost lines of the script that the main thread is in; of other code, if it is in no line of a script."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return words_of(frame)


def words_of(frame: FrameType | None) -> str:
    """Of this frame and those that have called it."""
    innermost, own = frame, list[str]()
    while frame is not None and len(own) < _LINES:
        if not passed_over(frame.f_code.co_filename, frame.f_code.co_name):
            own.append(_line(frame))
        frame = frame.f_back
    if not own and innermost is not None:
        own.append(_line(innermost))
    return cut(f"at {', '.join(own)}", _MOST_CHARACTERS) if own else ""


def _line(frame: FrameType) -> str:
    file, here = frame.f_code.co_filename, os.path.join(os.getcwd(), "")
    name = file.removeprefix(here) if file.startswith(here) else os.path.basename(file)
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
