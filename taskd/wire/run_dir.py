"""The run directory: where a job's key, its journal and the note of a running manager lie on one host.

Default /tmp/taskd-<uid>/<job>/ (TASKD_RUN_DIR). All in it is for one user only, and /tmp belongs to everybody, so
each use checks what it finds: no symbolic link, our own, mode 0700. Whoever comes first (manager, agent, worker) makes
it; nobody deletes it, since a restarted manager finds its journal there.

It does NOT read or write what lies inside: keys.py and the journal do.
"""

from __future__ import annotations

import os
import stat

from taskd.errors import UsageError


def ensure(directory: str) -> str:
    """Make and check a job's folder and the run directory above it; returns the folder or raises UsageError."""
    base = os.path.dirname(directory)
    try:
        os.makedirs(os.path.dirname(base), exist_ok=True)
        _make(base)
        _make(directory)
    except OSError as error:
        raise UsageError(
            f"the run directory {directory} cannot be made ({error.strerror}): set TASKD_RUN_DIR to a directory "
            "that this user may write"
        ) from None
    found = os.lstat(base)
    # A folder that others may write into is fine only with the sticky bit (like /tmp itself): without it they
    # could put another folder in the place of ours.
    if found.st_uid not in (0, os.getuid()) or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX):
        raise UsageError(
            f"the run directory {base} is not safe, others may change it: `chmod go-w {base}` if it is yours"
        )
    check(directory)
    return directory


def check(directory: str) -> None:
    """Raise UsageError unless the folder exists, is this user's alone and no link."""
    try:
        found = os.lstat(directory)
    except OSError as error:
        raise UsageError(f"the run directory {directory} cannot be used ({error.strerror})") from None
    if not stat.S_ISDIR(found.st_mode):
        raise UsageError(
            f"{directory} is not a directory (a symbolic link is not followed): remove it or set TASKD_RUN_DIR"
        )
    if found.st_uid != os.getuid():
        raise UsageError(
            f"{directory} belongs to another user (uid {found.st_uid}): set TASKD_RUN_DIR to one of your own"
        )
    if found.st_mode & 0o077:
        raise UsageError(f"{directory} is open to other users: `chmod 700 {directory}`, then start again")


def _make(path: str) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    os.chmod(path, 0o700)  # a umask may have taken the owner's own bits
