"""Notes which files a newcomer's set-up has read that were written after its predecessor's set-up.

A script that takes up its own checkpoint finds a newer one in a newcomer, and then decides otherwise than before. The
newcomer refuses that wherever it shows (state/note.py). The names of these files may say why, so they are added to the
sentence. They decide nothing: a file may be newer and have no effect.

Python calls an audit hook before it opens a file. Not seen: libraries that open files without Python.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from typing import Any

from taskd.state.coverage import listed
from taskd.worker.writes import opens_to_write, whose

_MOST = 8
"""So many files are noted."""
NEWER = (
    "; perhaps because its set-up has read {names}, written after that of its life before: session.between() can "
    "return, before the loops, what the script decides by it"
)


class _Watch:
    """The files that are opened from now on and were written after the time `since`."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.ended = False
        self.names: dict[str, None] = {}

    def saw(self, event: str, args: tuple[Any, ...]) -> None:
        """The audit hook."""
        if self.ended or event != "open" or len(self.names) == _MOST or opens_to_write(*args):
            return
        with contextlib.suppress(OSError, TypeError, ValueError):
            name = os.fsdecode(args[0])
            status = os.stat(name)
            if stat.S_ISREG(status.st_mode) and status.st_mtime > self.since and whose(sys._getframe(1)):
                self.names[name] = None


_watch: _Watch | None = None
"""That of this process. A hook cannot be taken out again."""


def watch(since: float) -> None:
    """Note which files are read that were written after the time `since`. It is called once in a process."""
    global _watch
    _watch = _Watch(since)
    sys.addaudithook(_watch.saw)


def end() -> None:
    """Note no more files: the set-up is over."""
    if _watch is not None:
        _watch.ended = True


def newer() -> str:
    """Return the end of a sentence that names the files, or an empty text."""
    return NEWER.format(names=listed([*_watch.names])) if _watch is not None and _watch.names else ""
