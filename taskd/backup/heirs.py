"""Sees to it that a newcomer finds the records of the life before: those of this node, or copies from another one.

A rank that died here has left its files here. One that lived on another node has not, or has left older ones from a
time when it lived here: then its start waits until the copies have come, which takes a moment, or until it is clear
that there are none. Records of this node's own workers go the other way (copies.py).
It does NOT start anybody.
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

FILES = 3
"""A worker hands over its local record, the record of its set-up and the bell that it rings."""
_logger = log.get(__name__)


@dataclass(frozen=True)
class Keepers:
    """Where copies are: of this node's own records, and of those of any rank's last life."""

    key: Key
    own: Sequence[Place]
    of: Callable[[int], Sequence[Place]]


class Heirs:
    """`wake` is called, in any thread, when `settled` has something new."""

    def __init__(self, job: str, node: str, keepers: Keepers, records: RecordFiles, wake: Callable[[], None]) -> None:
        self._records, self._keepers, self._wake = records, keepers, wake
        self._copies = Copies(job, node, keepers.key, keepers.own, self._arrived)
        self._waiting: dict[int, Spawn] = {}
        self._fetched: deque[Fetched] = deque()
        records.on_kept = self._took_in

    def start(self) -> None:
        """Begin to copy."""
        self._copies.start()

    def stop(self) -> None:
        """End it; nobody waits any longer."""
        self._copies.stop()
        for fetched in self._fetched:
            for fd in fetched.descriptors:
                os.close(fd)

    def ready(self, seat: Spawn) -> bool:
        """Whether this worker can be started now; if not, `settled` says when."""
        # Here died the life just before this one, or there is nothing that it would have to know.
        if not seat.newcomer or self._records.incarnation(seat.rank) == seat.incarnation - 1:
            return True
        self._waiting[seat.rank] = seat
        self._copies.fetch(seat.rank, seat.incarnation - 1, self._keepers.of(seat.rank))
        return False

    def unwanted(self, rank: int, incarnation: int) -> bool:
        """Another has this seat. True: nobody had been started for it yet, and nobody will be."""
        seat = self._waiting.get(rank)
        if seat is None or seat.incarnation != incarnation:
            return False
        del self._waiting[rank]
        return True

    def settled(self) -> list[tuple[Spawn, str]]:
        """Seats that wait no longer, each with the sentence that says why it cannot be taken (empty: it can)."""
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
        """A worker has handed over its files: from now on they are copied."""
        files = self._records.of(rank)
        if len(files) != FILES:
            return
        try:
            self._copies.keep(rank, self._records.incarnation(rank), *files)
        except OSError as error:
            _logger.warning("the records of rank %d are not copied to another node: %s", rank, error)
