"""The waits of the job's store: GETs and WAITs of which some keys are not there yet.

Whoever waits says so again and again, so a wait that nobody has repeated for long is dropped: its asker is gone or has
given up. Two indexes, by asker and by key, so that a key that comes finds who waits for it.

It does NOT hold values and forms no answers (store.py does): it says which waits are over.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass

from taskd.core import limits
from taskd.core.messages import StoreAsk


@dataclass
class Wait:
    """A GET or WAIT of which some keys are missing."""

    life: int
    ask: StoreAsk
    place: bytes
    until_ns: int
    missing: set[bytes]


class Waits:
    """All of them. Given the time from outside."""

    def __init__(self) -> None:
        self._by_asker: dict[tuple[int, int], Wait] = {}
        self._by_key: dict[bytes, set[tuple[int, int]]] = {}
        self._look_at_ns = 0

    def __len__(self) -> int:
        return len(self._by_asker)

    def all(self) -> list[Wait]:
        """Those of this moment, in order."""
        return [*self._by_asker.values()]

    def add(self, now_ns: int, life: int, ask: StoreAsk, place: bytes, missing: set[bytes]) -> None:
        """Wait for these keys; one that is repeated takes the place of the one before."""
        self.drop(life, ask.number)
        if not self._by_asker:
            self._look_at_ns = now_ns + limits.STORE_LEASE_NS
        self._by_asker[life, ask.number] = Wait(life, ask, place, now_ns + limits.STORE_LEASE_NS, missing)
        for key in missing:
            self._by_key.setdefault(key, set()).add((life, ask.number))

    def drop(self, life: int, number: int) -> None:
        """Nobody waits so any more, if anybody did."""
        wait = self._by_asker.pop((life, number), None)
        for key in wait.missing if wait is not None else ():
            marks = self._by_key[key]
            marks.discard((life, number))
            if not marks:
                del self._by_key[key]

    def take_served(self, came: Iterable[bytes], there: Container[bytes]) -> list[Wait]:
        """The waits whose last missing key has come; they are no waits any more. `there`: the keys that are now."""
        served = []
        for key in came:
            for mark in sorted(self._by_key.pop(key, ())):
                wait = self._by_asker[mark]
                wait.missing.discard(key)
                if wait.missing:
                    continue
                # What came first may be gone again by now.
                wait.missing = {wanted for wanted in wait.ask.items if wanted not in there}
                for wanted in wait.missing:
                    self._by_key.setdefault(wanted, set()).add(mark)
                if not wait.missing:
                    del self._by_asker[mark]
                    served.append(wait)
        return served

    def next_deadline(self) -> int | None:
        """When `expire` is to be called at the latest."""
        return self._look_at_ns if self._by_asker else None

    def expire(self, now_ns: int) -> None:
        """Drop those that nobody has repeated for long."""
        if not self._by_asker or now_ns < self._look_at_ns:
            return
        for wait in self.all():
            if wait.until_ns <= now_ns:
                self.drop(wait.life, wait.ask.number)
        self._look_at_ns = min((wait.until_ns for wait in self._by_asker.values()), default=0)
