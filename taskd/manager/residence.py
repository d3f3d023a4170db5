"""Ensures one manager per job and host: a lock, and a note that says where the manager runs.

The lock is a flock in the run directory, so a killed manager leaves nothing behind that must be cleaned up. The note
(manager.json: pid, host, port, job) is written when the manager is ready, and removed when it ends. Commands on this
host read it to find the manager, and a second manager reads it for its error message. The note is only a hint. The lock
is the proof.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

from taskd import log
from taskd.errors import UsageError
from taskd.processes import has_one_of, listening_at

_log = log.get(__name__)

LOCK_FILE = "manager.lock"
NOTE_FILE = "manager.json"


class Residence:
    """The lock and the note of one job's run directory."""

    def __init__(self, directory: str, job: str) -> None:
        self.directory = directory
        self.job = job
        self._lock = -1

    def take(self) -> None:
        """Become the manager of this job on this host; raises UsageError if there already is one."""
        path = os.path.join(self.directory, LOCK_FILE)
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(
                f"{path} cannot be made ({error.strerror}): set TASKD_RUN_DIR to a directory with room"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            holder = read(self.directory)
            where = f", pid {holder['pid']} on port {holder['port']}" if holder else ""
            raise UsageError(
                f"job {self.job} has a manager on this host already{where}: end it, or use another job id"
            ) from None
        self._lock = lock

    def announce(self, bind: str, port: int) -> None:
        """Write the note, when the manager is ready."""
        path = os.path.join(self.directory, NOTE_FILE)
        address = "127.0.0.1" if bind in ("0.0.0.0", "*") else bind  # the address for processes of this host
        note = {"pid": os.getpid(), "host": os.uname().nodename, "address": address, "port": port, "job": self.job}
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(path + ".new", flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(note, file)
            os.replace(path + ".new", path)
        except OSError as error:
            _log.warning(
                "%s cannot be written (%s): commands on this host need --job, --host and --port to find this manager",
                path,
                error.strerror,
            )

    def leave(self) -> None:
        """Remove the note and release the lock."""
        if self._lock < 0:
            return
        try:
            os.unlink(os.path.join(self.directory, NOTE_FILE))
        except FileNotFoundError:
            pass  # it was never ready
        os.close(self._lock)
        self._lock = -1


def read(directory: str) -> dict[str, Any] | None:
    """The note of a living manager, or None."""
    try:
        with open(os.path.join(directory, NOTE_FILE), encoding="utf-8") as file:
            note = json.loads(file.read(4096))
        os.kill(int(note["pid"]), 0)
        words = {name: str(note[name]) for name in ("host", "address", "job")}
        return {"pid": int(note["pid"]), "port": int(note["port"]), **words}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def holder_of(port: int, run_dir: str) -> str:
    """Which process listens on this port of the host, in words; empty if that is unknown."""
    try:
        jobs = sorted(os.listdir(run_dir))
    except OSError:
        jobs = []
    for job in jobs:
        note = read(os.path.join(run_dir, job))
        if note is not None and note["port"] == port:
            return f"the manager of job {note['job']} (pid {note['pid']})"
    sockets = listening_at(port)
    for pid in filter(str.isdigit, os.listdir("/proc")) if sockets else ():
        if has_one_of(pid, sockets):
            return f"process {pid} ({_command(pid)})"
    return ""


def _command(pid: str) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read(200).replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return "it has just gone"
