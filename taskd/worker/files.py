"""Files that are whole or not there: written beside their place, flushed to the disk, and then renamed.

Whoever dies in the middle leaves the file before as it was. Doing it twice gives the same file, so a checkpoint or a
table that is written like this may follow a step or an epoch (`step.on_commit`, `session.between`) and may be done
again by a newcomer. It does NOT add to files, lock them, or know who else writes them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any


def write_file(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Put these contents in place of the file. Raises OSError."""
    contents = data.encode() if isinstance(data, str) else data
    _replace(Path(path), lambda file: file.write(contents))


def save(value: Any, path: str | os.PathLike[str]) -> None:
    """torch.save, in place of the file that is there. Raises OSError."""
    import torch

    _replace(Path(path), lambda file: torch.save(value, file))


def add_line(path: str | os.PathLike[str], line: str) -> None:
    """Add this line, unless the file ends with it already; what an earlier attempt has left of one goes. So a line
    should say what it is of, a step say, and one process should write the file. Raises OSError."""
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
        os.fsync(folder)  # the name, too, outlives the host
    finally:
        os.close(folder)
