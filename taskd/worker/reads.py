"""Notes which files a newcomer's set-up reads that were written after its predecessor's set-up, and which it makes.

A script that takes up its own checkpoint finds a newer one in a newcomer, and then decides otherwise than before. The
newcomer refuses that wherever it shows (state/note.py). The names of these files may say why, so they are added to the
sentence. They decide nothing: a file may be newer and have no effect.

The files that it makes or writes anew, and that are not newer, hold what they held for its predecessor. So its steps
may read them (kept_files.py).

Not seen: libraries that open files without Python.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from taskd.state.coverage import listed
from taskd.worker import audit, emptied
from taskd.worker.writes import opens_to_write, path_of, whose

_MOST = 8
"""So many files that are read are noted."""
_MOST_MADE = 64
"""So many files that are made are noted for the next life."""
NEWER = (
    "; perhaps because its set-up has read {names}, written after that of its life before: session.between() can "
    "return, before the loops, what the script decides by it"
)


class _Watch:
    """The files that are opened from now on."""

    def __init__(self, since: float, made: dict[str, int]) -> None:
        """`made`: the files that the set-up of the life before has made, and when they were last written."""
        self._since, self._made_before = since, made
        self.ended = float("inf")
        self.names: dict[str, None] = {}
        """Those that are read and were written after the time `since`."""
        self.made: set[str] = set()
        """Those that are written, and not lost."""
        self.lost: set[str] = set()
        """Those that are written anew or removed, and were written after that."""

    def hears(self, event: str, args: tuple[Any, ...], frame: FrameType) -> None:
        """Hear that a file is about to be opened, removed or replaced."""
        with contextlib.suppress(OSError, TypeError, ValueError, IndexError):
            if event == "os.rename":
                source, path = path_of(args[0], args[2]), path_of(args[1], args[3])
                self.lost |= {source} if self._is_newer(source) else set()
                self._written(path, frame, emptied.lose)
            elif event == "os.remove":
                self._written(path_of(*args), frame, emptied.lose)
            elif event == "sqlite3.connect":
                self._written(path_of(args[0]), frame)
            elif opens_to_write(*args):
                self._written(path_of(args[0]), frame, emptied.keep if args[2] & os.O_TRUNC else None)
            elif len(self.names) < _MOST and self._is_newer(path_of(args[0])) and whose(frame):
                self.names[os.fsdecode(args[0])] = None

    def _written(self, path: str, frame: FrameType, keep: Callable[[str], None] | None = None) -> None:
        """`keep`: notes what goes, or keeps it."""
        if not whose(frame):
            return
        if not self._is_newer(path):
            self.made |= {path} - self.lost
        else:
            self.lost.add(path)
            if keep is not None:
                keep(path)

    def _is_newer(self, path: str) -> bool:
        """Whether this file was written after the time `since`, and not by this set-up."""
        if path in self.made or not os.path.exists(path):
            return False
        status = os.stat(path)
        is_newer = status.st_mtime > self._since and status.st_mtime_ns != self._made_before.get(path)
        return is_newer and stat.S_ISREG(status.st_mode)


_watch: _Watch | None = None
"""That of this process."""


def watch(since: float, made: dict[str, int]) -> None:
    """Note which files are read that were written after the time `since`, and which are made. See _Watch for `made`."""
    global _watch
    _watch = _Watch(since, made)
    audit.listen(("open", "os.remove", "os.rename", "sqlite3.connect"), _watch.hears)


def ends() -> bool:
    """Note no more files, if the set-up is over only now. Return whether it is."""
    if _watch is None or _watch.ended < float("inf"):
        return False
    audit.leave(_watch.hears)
    _watch.ended = time.time()
    return True


def made() -> dict[str, int]:
    """Return the files that this set-up has made, and when they were last written, in nanoseconds."""
    found = dict[str, int]()
    for path in sorted(_watch.made)[:_MOST_MADE] if _watch is not None else []:
        with contextlib.suppress(OSError):  # another process may remove it at any time
            status = os.stat(path)
            if stat.S_ISREG(status.st_mode):
                found[path] = status.st_mtime_ns
    return found


def has_lost(name: str) -> bool:
    """Whether the set-up has removed this file or written it anew, and it was newer. `name`: its absolute path."""
    return _watch is not None and name in _watch.lost


def last_written(name: str) -> float:
    """Return by when a file was last written, if only set-ups have written it. `name`: its absolute path. 0: before
    the loops began in the life before, since this set-up has not written it; or there was no life before."""
    return _watch.ended if _watch is not None and name in _watch.made else 0.0


def newer() -> str:
    """Return the end of a sentence that names the files, or an empty text."""
    return NEWER.format(names=listed([*_watch.names])) if _watch is not None and _watch.names else ""
