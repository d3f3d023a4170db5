"""The waits of the job's store: GETs and WAITs with keys that do not exist yet.

A client that waits repeats its request. So a wait that was not repeated for long is dropped: its client is gone or has
given up. There are two indexes, by client and by key, so that a new key finds its waits.

It does NOT hold values and forms no answers (store.py does): it says which waits are over.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from taskd.core import limits
from taskd.core.messages import StoreAsk


@dataclass
class Wait:
    """A GET or WAIT with missing keys."""

    life: int
    ask: StoreAsk
    place: bytes
    until_ns: int
    missing: set[bytes]


class Waits:
    """All waits. The caller provides the time."""

    def __init__(self) -> None:
        self._by_asker: dict[tuple[int, int], Wait] = {}
        self._by_key: dict[bytes, set[tuple[int, int]]] = {}
        self._look_at_ns = 0

    def __len__(self) -> int:
        return len(self._by_asker)

    def all(self) -> list[Wait]:
        """The current waits, in order."""
        return [*self._by_asker.values()]

    def add(self, now_ns: int, life: int, ask: StoreAsk, place: bytes, missing: set[bytes]) -> None:
        """Add a wait for these keys. A repeated wait replaces its earlier copy."""
        self.drop(life, ask.number)
        if not self._by_asker:
            self._look_at_ns = now_ns + limits.STORE_LEASE_NS
        self._by_asker[life, ask.number] = Wait(life, ask, place, now_ns + limits.STORE_LEASE_NS, missing)
        for key in missing:
            self._by_key.setdefault(key, set()).add((life, ask.number))

    def drop(self, life: int, number: int) -> None:
        """Remove this wait, if it exists."""
        wait = self._by_asker.pop((life, number), None)
        for key in wait.missing if wait is not None else ():
            marks = self._by_key[key]
            marks.discard((life, number))
            if not marks:
                del self._by_key[key]

    def take_served(self, came: Iterable[bytes], there: Container[bytes]) -> list[Wait]:
        """Remove and return the waits that have all their keys now. `came`: new keys; `there`: all existing keys."""
        served = []
        for key in came:
            for mark in sorted(self._by_key.pop(key, ())):
                wait = self._by_asker[mark]
                wait.missing.discard(key)
                if wait.missing:
                    continue
                # A key that arrived earlier may be deleted again by now.
                wait.missing = {wanted for wanted in wait.ask.items if wanted not in there}
                for wanted in wait.missing:
                    self._by_key.setdefault(wanted, set()).add(mark)
                if not wait.missing:
                    del self._by_asker[mark]
                    served.append(wait)
        return served

    def next_deadline(self) -> int | None:
        """The latest time to call `expire`; None: there are no waits."""
        return self._look_at_ns if self._by_asker else None

    def expire(self, now_ns: int) -> None:
        """Drop the waits that were not repeated for long."""
        if not self._by_asker or now_ns < self._look_at_ns:
            return
        for wait in self.all():
            if wait.until_ns <= now_ns:
                self.drop(wait.life, wait.ask.number)
        self._look_at_ns = min((wait.until_ns for wait in self._by_asker.values()), default=0)
