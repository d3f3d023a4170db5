"""Provides a newcomer with the records of its previous life: those of this node, or copies from another node.

A rank that died here has left its files here. A rank that lived on another node has left none here, or only older ones
from an earlier life here. Then its start waits a moment until the copies arrive, or until it is clear that there are
none. Records of this node's own workers are copied in the other direction (copies.py).
It does NOT start any worker.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from taskd import log
from taskd.backup.copies import Copies, Place
from taskd.backup.fetch import Fetched
from taskd.backup.files import RecordFiles
from taskd.core.effects import Spawn
from taskd.wire.keys import Key

FILES = 4
"""A worker hands over four files: its local record, its set-up record, the file for its shards (which is not copied),
and the eventfd ("bell") that it signals."""
_logger = log.get(__name__)


@dataclass(frozen=True)
class Keepers:
    """The keepers of this node's own records (`own`), and those that may have the records of any rank (`of`)."""

    key: Key
    own: Sequence[Place]
    of: Callable[[int], Sequence[Place]]


class Heirs:
    """The records of newcomers on this node. `wake` is called, in any thread, when `settled` has something new."""

    def __init__(self, job: str, node: str, keepers: Keepers, records: RecordFiles, wake: Callable[[], None]) -> None:
        self._records, self._keepers, self._wake = records, keepers, wake
        self._copies = Copies(job, node, keepers.key, keepers.own, self._arrived)
        self._waiting: dict[int, Spawn] = {}
        self._fetched: deque[Fetched] = deque()
        records.on_kept = self._took_in

    def start(self) -> None:
        """Begin to copy records."""
        self._copies.start()

    def stop(self) -> None:
        """Stop copying, and close fetched files that were not used."""
        self._copies.stop()
        for fetched in self._fetched:
            for fd in fetched.descriptors:
                os.close(fd)

    def ready(self, seat: Spawn) -> bool:
        """Whether this worker can be started now; if not, `settled` returns it later."""
        # The rank's previous life has left its files here, or the worker is no newcomer and needs none.
        if not seat.newcomer or self._records.incarnation(seat.rank) == seat.incarnation - 1:
            return True
        self._waiting[seat.rank] = seat
        self._copies.fetch(seat.rank, seat.incarnation - 1, self._keepers.of(seat.rank))
        return False

    def unwanted(self, rank: int, incarnation: int) -> bool:
        """Cancel a waiting start, because the seat is not needed any more.

        Returns True if it was waiting: no worker was started for it, and none will be."""
        seat = self._waiting.get(rank)
        if seat is None or seat.incarnation != incarnation:
            return False
        del self._waiting[rank]
        return True

    def settled(self) -> list[tuple[Spawn, str]]:
        """The seats whose wait is over, each with the reason why it cannot be started (empty: it can)."""
        found = []
        while self._fetched:
            fetched = self._fetched.popleft()
            seat = self._waiting.pop(fetched.rank, None)
            own = self._records.incarnation(fetched.rank)
            if seat is not None and fetched.descriptors and fetched.incarnation > own:
                self._records.keep(fetched.rank, list(fetched.descriptors), fetched.incarnation)
            else:
                for fd in fetched.descriptors:
                    os.close(fd)
            if seat is not None:
                found.append((seat, "" if self._records.of(fetched.rank) else fetched.reason))
        return found

    def _arrived(self, fetched: Fetched) -> None:
        self._fetched.append(fetched)
        self._wake()

    def _took_in(self, rank: int) -> None:
        """Begin to copy the files that a worker has handed over."""
        files = self._records.of(rank)
        if len(files) != FILES:
            return
        try:
            record, setup, _, bell = files
            self._copies.keep(rank, self._records.incarnation(rank), record, setup, bell)
        except OSError as error:
            _logger.warning("the records of rank %d are not copied to another node: %s", rank, error)
