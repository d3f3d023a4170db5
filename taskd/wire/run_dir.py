"""The run directory: where a job's key, its journal and the note of a running manager are on one host.

The default is /tmp/taskd-<uid>/<job>/ (TASKD_RUN_DIR). Everything in it is for one user only, but everybody can write
to /tmp. So each use checks the folder: no symbolic link, our own, mode 0700. The first process (manager, agent, worker)
makes it. No process deletes it, because a restarted manager finds its journal there.

This module does NOT read or write the files inside: keys.py and the journal do.
"""

from __future__ import annotations

import os
import stat

from taskd.errors import UsageError


def ensure(directory: str) -> str:
    """Make and check a job's folder and the run directory above it. Return the folder, or raise UsageError."""
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
    # A folder that others can write to is safe only with the sticky bit (like /tmp itself). Without it, others could
    # replace our folder by another one.
    if found.st_uid not in (0, os.getuid()) or (found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX):
        raise UsageError(
            f"the run directory {base} is not safe, others may change it: `chmod go-w {base}` if it is yours"
        )
    check(directory)
    return directory


def check(directory: str) -> None:
    """Raise UsageError unless the folder exists, belongs to this user, is closed to others and is no link."""
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
    os.chmod(path, 0o700)  # a umask may have removed the owner's own bits
