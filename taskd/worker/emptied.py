"""Files that a newcomer's set-up empties though steps have written to them: their contents are kept and put back.

A script that opens its log anew (`open("log.csv", "w")`) does so in a newcomer, too, and the lines of all steps would
be gone. So what is in such a file is read just before it is emptied. It is put back when the newcomer has joined the
others and begins its first step. A file that the script has open then goes on at its end.

Failure modes: the set-up has written something else there than its life before (a header with the time); another rank
has the file open, too, and has written to it meanwhile; the file is large, or no text. Invariant: nothing is put back
in a job that starts over. Files that the set-up removes or replaces are only named. Not seen: files that a library
opens by itself; a newcomer that dies before it has put back what it has kept.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
from collections.abc import Iterator
from typing import Any

from taskd.state.coverage import listed

MOST_BYTES = 64 << 20
"""So much is kept of all files together."""
LOST = (
    "the set-up of this newcomer has removed or emptied {names}, where steps had written: what stood there is lost; "
    "let it open such files for appending, or look first whether they are there"
)

_kept: dict[str, bytes] = {}
"""What was in each file, by its absolute path."""
_lost: dict[str, None] = {}
"""The files of which nothing was kept."""


def keep(path: str) -> None:
    """Keep what is in this file: it is about to be emptied."""
    if path in _kept:
        return
    with contextlib.suppress(OSError, MemoryError):
        if os.path.getsize(path) + sum(map(len, _kept.values())) <= MOST_BYTES:
            with open(path, "rb") as file:
                _kept[path] = file.read()
            return
    lose(path)


def lose(path: str) -> None:
    """Note that this file is about to be removed or replaced."""
    _lost[path] = None


def put_back() -> list[str]:
    """Put back what was kept. Return a sentence about what was lost. A second call does nothing."""
    while _kept:
        path, before = _kept.popitem()
        try:
            is_put = _put(path, before)
        except Exception:  # whatever a stream of a library raises
            is_put = False
        if not is_put:
            lose(path)
    names = listed(_lost)
    _lost.clear()
    return [LOST.format(names=names)] if names else []


def _put(path: str, before: bytes) -> bool:
    """Put this into the file, if it is plain text and nobody would be confused by it. Return whether it was."""
    streams = [*_streams_of(path)]
    if b"\0" in before or not all(map(_is_plain, streams)):
        return False
    for stream in streams:
        stream.flush()
    with open(path, "r+b") as file:
        now = file.read()
        header = now[: len(before)].rstrip(b"\0")  # zeros: another rank has gone on behind what it had written
        if before.startswith(header):
            file.seek(len(header))
            file.write(before[len(header) :])
        elif streams:
            file.seek(0)
            file.write(before + now)
        else:
            return False
    for stream in streams:
        stream.seek(0, os.SEEK_END)
    return True


def _is_plain(stream: Any) -> bool:
    """Whether what is written to this stream gets into the file as it is, and at any place."""
    if type(stream) is io.TextIOWrapper:
        return _is_plain(stream.buffer)
    if type(stream) in (io.BufferedWriter, io.BufferedRandom):
        return _is_plain(stream.raw)
    return type(stream) is io.FileIO


def _streams_of(path: str) -> Iterator[Any]:
    """Return the open streams that write to this file."""
    wanted = os.stat(path)
    for one in gc.get_objects():
        if issubclass(type(one), io.IOBase):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # it is not whole yet, or closed
                if one.writable() and os.path.samestat(os.fstat(one.fileno()), wanted):
                    yield one
