"""The record files of this node's ranks: memory files that outlive the processes which wrote them.

A worker hands over the descriptors of its local record, of the record of its set-up and of the bell that it rings. The
agent holds them, so the next life of the rank finds them although the process is dead. Records that were fetched from
another node are held in the same way. Alone, since the agent, the launcher and whoever copies all read it.
It does NOT read or copy the files, and it knows no process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from taskd import _native


class RecordFiles:
    """By rank: the files of its last life that had any."""

    def __init__(self) -> None:
        self.on_kept: Callable[[int], None] = lambda _rank: None
        """Told a rank whose files have been taken in."""
        self._files: dict[int, list[int]] = {}
        self._incarnations: dict[int, int] = {}

    def of(self, rank: int) -> Sequence[int]:
        """The descriptors, which stay this object's; none if nothing is kept for the rank."""
        return self._files.get(rank, ())

    def incarnation(self, rank: int) -> int:
        """Which life of the rank has written the files that were kept last; -1: there never were any."""
        return self._incarnations.get(rank, -1)

    def keep(self, rank: int, descriptors: list[int], incarnation: int) -> None:
        """Keep these files for the rank in place of those kept before."""
        self._let_go(rank)
        for fd in descriptors:
            _native.close_on_fork(fd)
        if descriptors:
            self._files[rank], self._incarnations[rank] = descriptors, incarnation
            self.on_kept(rank)

    def close(self) -> None:
        """Let go of everything."""
        for rank in list(self._files):
            self._let_go(rank)

    def _let_go(self, rank: int) -> None:
        for fd in self._files.pop(rank, []):
            _native.keep_on_fork(fd)
            os.close(fd)
