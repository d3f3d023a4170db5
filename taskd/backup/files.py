"""The record files of this node's ranks: memory files that outlive the processes that wrote them.

A worker hands over the descriptors of its local record, of its set-up record, of the file for its shards and of the
eventfd ("bell") that it signals. The agent holds them, so that the next life of the rank finds them although the
process is dead. Records that were fetched from another node are held in the same way. This is a module of its own,
since the agent, the launcher and the copying code all use it.
It does NOT read or copy the files, and it knows no process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from taskd import _native


class RecordFiles:
    """For each rank, the files of its last life that had any."""

    def __init__(self) -> None:
        self.on_kept: Callable[[int], None] = lambda _rank: None
        """Called with a rank whose files have been stored here."""
        self._files: dict[int, list[int]] = {}
        self._incarnations: dict[int, int] = {}

    def of(self, rank: int) -> Sequence[int]:
        """The rank's descriptors, empty if nothing is kept for it. This object still owns them."""
        return self._files.get(rank, ())

    def incarnation(self, rank: int) -> int:
        """The incarnation of the rank that wrote its latest files; -1: there never were any."""
        return self._incarnations.get(rank, -1)

    def keep(self, rank: int, descriptors: list[int], incarnation: int) -> None:
        """Keep these files for the rank instead of its earlier ones."""
        self._let_go(rank)
        for fd in descriptors:
            _native.close_on_fork(fd)
        if descriptors:
            self._files[rank], self._incarnations[rank] = descriptors, incarnation
            self.on_kept(rank)

    def close(self) -> None:
        """Close all files."""
        for rank in list(self._files):
            self._let_go(rank)

    def _let_go(self, rank: int) -> None:
        for fd in self._files.pop(rank, []):
            _native.keep_on_fork(fd)
            os.close(fd)
