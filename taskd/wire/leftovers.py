"""How the run directory is cleaned up: journals are kept for a week, keys and stores are not kept at all.

A run that has ended needs only its journal (for `taskd replay` and `taskd incidents`). So the first node's launcher
removes key and store when its job is over. A key that was there before the job is kept. Each manager that starts,
whoever starts it, removes the folders of runs that ended more than KEEP_DAYS ago. Of the others it keeps the KEEP_RUNS
newest. A folder whose manager lives is left alone, and so is every file that is not taskd's.
It does NOT touch a run directory's other contents. A file that cannot be removed causes no failure.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from taskd import log

KEEP_DAYS = 7
KEEP_RUNS = 50
LOCK = "manager.lock"
OURS = ("journal.db", "store.db", "key", "manager.", "term")
"""The prefixes of the names of taskd's files."""
_DAY_SECONDS = 86_400
_logger = log.get(__name__)


def clear_away(run_dir: Path, own: str, now_seconds: float | None = None) -> list[str]:
    """Remove folders of runs that ended long ago; returns their names. `own`: the job that is about to start."""
    now = time.time() if now_seconds is None else now_seconds  # wall time: so are the files' times
    ended: list[tuple[float, Path]] = []
    with contextlib.suppress(OSError):
        for folder in run_dir.iterdir():
            if folder.name != own and not folder.is_symlink() and (folder / LOCK).is_file():
                ended.append((_touched(folder), folder))
    ended.sort(reverse=True)
    gone = []
    for place, (touched, folder) in enumerate(ended):
        if place < KEEP_RUNS and now - touched < KEEP_DAYS * _DAY_SECONDS:
            continue
        if _remove(folder):
            gone.append(folder.name)
    if gone:
        _logger.info("the files of %d runs that have ended are removed from %s", len(gone), run_dir)
    return gone


def forget_run(folder: Path, key_too: bool) -> None:
    """Remove the store of a run that is over, and with `key_too` also the key that was made for it."""
    for file in _ours(folder):
        if file.name.startswith("store.db") or (key_too and file.name == "key"):
            with contextlib.suppress(OSError):
                file.unlink()


def _touched(folder: Path) -> float:
    """When one of its files was written last; 0 if that is unknown."""
    return max((_time_of(file) for file in _ours(folder)), default=0.0)


def _time_of(file: Path) -> float:
    try:
        return file.lstat().st_mtime
    except OSError:
        return 0.0


def _ours(folder: Path) -> list[Path]:
    try:
        return [file for file in folder.iterdir() if file.name.startswith(OURS)]
    except OSError:
        return []


def _remove(folder: Path) -> bool:
    """Remove a run's folder; returns whether it is gone. The lock is held meanwhile, so no manager begins in it."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for file in _ours(folder):
            file.unlink()
        folder.rmdir()
        return True
    except OSError:
        return False  # its manager lives, or it holds files that are not taskd's
    finally:
        os.close(lock)
