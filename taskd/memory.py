"""How much memory this process may still use: what the machine has free, and what its control group allows.

Control groups of both versions are read. In a container the path of a group may be a path of the host, while the group
itself is mounted as the root. This module reserves nothing: what is free now may be gone a moment later.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60
_LISTING = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/meminfo")


def free(listing: Path = _LISTING, root: Path = ROOT, machine: Path = _MACHINE) -> int:
    """Return how many bytes are free, or are only a cache of files. UNLIMITED: nobody says."""
    found = [_of_machine(machine)]
    for folder in own_folders(listing, root):
        limit = number(folder, "memory.max", "memory.limit_in_bytes")
        used = number(folder, "memory.current", "memory.usage_in_bytes")
        if limit is not None and used is not None:
            found.append(max(limit - used + _cached(folder), 0))
    return min(found)


def own_folders(listing: Path, root: Path) -> tuple[Path, ...]:
    """The folders in which a process' control group files may be, according to its /proc/PID/cgroup."""
    found: list[Path] = []
    try:
        lines = listing.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    for line in lines:
        group, controllers, path = line.split(":", 2)
        if group == "0":
            bases = [root, root / "unified"]
        elif "memory" in controllers.split(","):
            bases = [root / "memory"]
        else:
            continue
        found += [place for base in bases for place in (base / path.lstrip("/"), base)]
    return tuple(found)


def number(folder: Path, *names: str) -> int | None:
    """Return the number in the first of these files that has one."""
    for name in names:
        try:
            return int((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # the other version's name, or "max"
    return None


def _cached(folder: Path) -> int:
    """Return how much of what a group uses is files that were read and can be forgotten."""
    try:
        words = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text(encoding="utf-8").splitlines())
        return int(words.get("inactive_file", 0))
    except (OSError, ValueError):
        return 0


def _of_machine(file: Path) -> int:
    try:
        words = dict(line.split(":", 1) for line in file.read_text(encoding="utf-8").splitlines())
        return int(words["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return UNLIMITED
