"""Atomic writes of files: a file is written beside its place, flushed to the disk, and then renamed.

If the process dies during a write, the earlier file stays as it was. Two writes give the same file. So a checkpoint or
a table may be written like this after a step or an epoch (`step.on_commit`, `session.between`), and a newcomer may
write it again. It does NOT lock files, or know who else writes them. Only `add_line` adds to a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def write_file(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Replace the file by these contents. Raises OSError."""
    contents = data.encode() if isinstance(data, str) else data
    _replace(Path(path), lambda file: file.write(contents))


def save(value: Any, path: str | os.PathLike[str]) -> None:
    """Replace the file by the output of torch.save. Raises OSError."""
    import torch

    _replace(Path(path), lambda file: torch.save(value, file))


def add_line(path: str | os.PathLike[str], line: str) -> None:
    """Add this line, unless the file already ends with it. A part of the line left by an earlier attempt is removed. So
    each line should name its step or the like, and only one process should write the file. Raises OSError."""
    wanted = line.rstrip("\n").encode() + b"\n"
    with open(path, "ab+") as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(0, end - len(wanted)))
        tail = file.read()
        rest = tail[tail.rfind(b"\n") + 1 :]
        if tail == wanted and _begins_a_line(file, end - len(wanted)):
            return
        if rest and wanted.startswith(rest):
            file.truncate(end - len(rest))
        elif rest:
            wanted = b"\n" + wanted
        file.write(wanted)
        file.flush()
        os.fsync(file.fileno())


def _begins_a_line(file: IO[bytes], at: int) -> bool:
    if at == 0:
        return True
    file.seek(at - 1)
    return file.read(1) == b"\n"


def _replace(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(beside, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # so that the new name survives a crash of the host, too
    finally:
        os.close(folder)
