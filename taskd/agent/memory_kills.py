"""Tells whether the system killed a process because memory ran out: then its control group's counter has risen.

The kernel counts such a kill before it sends the signal, so the counter is up to date when a death is seen. The counter
does not say which process was killed. A rank that dies by SIGKILL within a few seconds of the rise is assumed to be
that process. Control groups of both versions are read. Where there is none, nothing is reported.
It does NOT read the kernel's log, which only root may do, and knows no rank.
"""

from __future__ import annotations

from pathlib import Path

from taskd.core.limits import SECOND
from taskd.core.words import FOR_ITS_MEMORY
from taskd.memory import ROOT, UNLIMITED, number, own_folders

NEAR_NS = 5 * SECOND
"""A death by SIGKILL within this time after the counter rose counts as a kill for memory."""


class MemoryKills:
    """The kill counter of one control group, and when it rose."""

    def __init__(self, folders: tuple[Path, ...] | None = None) -> None:
        """`folders`: where the control group's files may be; by default the folders of this process' groups."""
        found = folders if folders is not None else own_folders(Path("/proc/self/cgroup"), ROOT)
        names = ("memory.events", "memory.oom_control")
        files = (folder / name for folder in found for name in names)
        self._file = next((file for file in files if _counter(file) is not None), None)
        self._count = self._read()
        self._rose_at_ns: int | None = None

    def look(self, now_ns: int) -> None:
        """Note whether the counter has risen."""
        count = self._read()
        if count > self._count:
            self._rose_at_ns = now_ns
        self._count = count

    def why(self, now_ns: int) -> str:
        """Why SIGKILL has just ended a process; empty if it was not because of memory."""
        self.look(now_ns)
        if self._file is None or self._rose_at_ns is None or now_ns - self._rose_at_ns > NEAR_NS:
            return ""
        limit = number(self._file.parent, "memory.max", "memory.limit_in_bytes")
        used = number(self._file.parent, "memory.peak", "memory.max_usage_in_bytes")
        if limit is None or limit >= UNLIMITED:
            return f"{FOR_ITS_MEMORY}the machine had no more"
        most = f", of which {_gib(used)} were used" if used is not None else ""
        return f"{FOR_ITS_MEMORY}the limit of its control group is {_gib(limit)}{most}"

    def _read(self) -> int:
        return (_counter(self._file) or 0) if self._file is not None else 0


def _counter(file: Path) -> int | None:
    """How many processes of the group were killed for memory; None: the file does not say."""
    try:
        words = dict(line.split(" ", 1) for line in file.read_text(encoding="utf-8").splitlines())
        return int(words["oom_kill"])
    except (OSError, ValueError, KeyError):
        return None


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
