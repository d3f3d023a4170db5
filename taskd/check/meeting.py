"""A test of two nodes, as one of their probes does it: transfers over each rail, and work for each other.

One node calls and the other one answers. The caller connects over every rail that both have, and then goes from rail to
rail, so that rails do not disturb each other. Then each node works for the other one, over a rail that works: it is
told a number, multiplies the matrices that follow from it, and tells the digest of the result. Both ends measure how
long that takes.

Failure modes: the partner is gone, hangs, or comes late; a rail does not work, works in one direction, or is slow; the
partner says what it must not say. Invariant: each test ends before its limit, and each rail gets its share of the time.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from taskd.check.blocks import Rail, measure, receive, send
from taskd.check.door import Door
from taskd.check.own import Own
from taskd.check.sizes import BLOCKS, PATIENCE_NS, PRODUCTS, SEEDS, time_of
from taskd.check.talk import Broken, Talk
from taskd.check.work import expected
from taskd.core.check.facts import Side, Way, Work
from taskd.core.limits import SECOND

CONNECT_SHARE = 0.25
"""The part of a test's time that the connections may take."""
RAILS_SHARE = 0.65
"""The part of it after which no transfer over a rail is tried any more."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the conductor wants of one node in a turn: a test with one partner."""

    token: str
    """Tells this test's connections from others."""
    calls: bool
    rails: Mapping[str, tuple[str, int]]
    """Where the partner listens on each rail of this node that both have."""
    limit_ns: int


@dataclass(slots=True)
class _Partner:
    """What this node has seen of its partner's work."""

    right: bool = True
    compute_ns: list[int] = field(default_factory=list)
    memory_ns: list[int] = field(default_factory=list)

    def work(self) -> Work | None:
        """Return this as a fact. None: no answer came."""
        if not self.compute_ns or not self.memory_ns:
            return None
        return Work(self.right, time_of(self.compute_ns), time_of(self.memory_ns))


class Meeting:
    """One test with one partner."""

    def __init__(self, order: Order, own: Own, door: Door) -> None:
        self._order, self._own, self._door = order, own, door
        self._begin = time.monotonic()
        self._limit = order.limit_ns / SECOND
        self._rails = {name: Rail(name) for name in own.addresses if name in order.rails}
        self._partner = _Partner()
        self._over = threading.Event()

    def hold(self) -> Side:
        """Do the test. Return what this node has seen."""
        self._own.begin()
        if self._order.calls:
            self._call()
        else:
            self._answer()
        took_ns = int((time.monotonic() - self._begin) * SECOND)
        legs = tuple(rail.leg() for rail in self._rails.values())
        return Side(legs, self._own.work(), self._partner.work(), took_ns)

    def _until(self, share: float) -> float:
        return self._begin + self._limit * share

    # ---- the caller -------------------------------------------------------------------------------------------

    def _call(self) -> None:
        talks = self._connect()
        try:
            for at, (name, talk) in enumerate(talks.items()):
                now = time.monotonic()
                talk.until = now + max(self._until(RAILS_SHARE) - now, 0.0) / (len(talks) - at)
                _without_breaking(partial(measure, talk, self._rails[name]))
            good = [name for name in talks if _works(self._rails[name])]
            for name in good:
                talks[name].until = self._until(1.0)
            if good:
                _without_breaking(partial(self._work_for_each_other, talks[good[0]], self._rails[good[0]]))
            for name in good:
                _without_breaking(partial(talks[name].say, "over"))
        finally:
            for talk in talks.values():
                talk.close()

    def _connect(self) -> dict[str, Talk]:
        """Connect over all rails at once. Return those that have come about, in the order of their names."""
        if not self._rails:
            return {}
        with ThreadPoolExecutor(len(self._rails)) as pool:
            found = dict(zip(self._rails, pool.map(self._connected, self._rails), strict=True))
        return {name: talk for name, talk in sorted(found.items()) if talk is not None}

    def _connected(self, name: str) -> Talk | None:
        until = self._until(CONNECT_SHARE)
        try:
            talk = self._door.connect(name, self._order.rails[name], until)
            talk.say("hello", self._order.token)
            talk.until = self._until(RAILS_SHARE)  # the partner may get its order later
            talk.hear_only("welcome")
        except Broken as broken:
            self._rails[name].broke(broken.way)
            return None
        return talk

    def _work_for_each_other(self, talk: Talk, rail: Rail) -> None:
        self._ask(talk)
        talk.say("ask")
        self._serve(talk, rail)

    def _ask(self, talk: Talk) -> None:
        """Let the partner work, and measure it. Raises Broken."""
        partner, seeds, size = self._partner, [random.getrandbits(30) for _ in range(SEEDS)], self._own.size
        for attempt in range(size.tries):
            seed = seeds[attempt % SEEDS]
            begin = time.monotonic_ns()
            talk.say("work", seed)
            said = talk.hear_only("done")
            partner.compute_ns.append(time.monotonic_ns() - begin)
            partner.right &= _is_right(said, seed)
            if sum(partner.compute_ns) > PATIENCE_NS:
                break
        for _ in range(size.copies):
            begin = time.monotonic_ns()
            talk.say("copy")
            talk.hear_only("copied")
            partner.memory_ns.append(time.monotonic_ns() - begin)
            if sum(partner.memory_ns) > PATIENCE_NS:
                break

    # ---- the node that answers --------------------------------------------------------------------------------

    def _answer(self) -> None:
        threads: list[threading.Thread] = []
        waiting = set(self._rails)
        while waiting and not self._over.is_set() and (left := self._until(1.0) - time.monotonic()) > 0:
            for name, talk in self._door.guests(self._order.token, min(left, 0.05)):
                if name not in waiting:
                    talk.close()
                    continue
                waiting.discard(name)
                talk.until = self._until(1.0)
                thread = threading.Thread(target=self._serve_guest, args=(talk, self._rails[name]), daemon=True)
                thread.start()
                threads.append(thread)
        for thread in threads:
            thread.join(max(self._until(1.0) - time.monotonic(), 0.0))

    def _serve_guest(self, talk: Talk, rail: Rail) -> None:
        def served() -> None:
            talk.say("welcome")
            self._serve(talk, rail)

        _without_breaking(served)
        talk.close()

    def _serve(self, talk: Talk, rail: Rail) -> None:
        """Do what the partner says until it has got all. Raises Broken."""
        while True:
            match talk.hear():
                case ["take", int(size)] if size in BLOCKS:
                    receive(talk, rail, size)
                case ["give", int(size)] if size in BLOCKS:
                    send(talk, rail, size)
                case ["work", int(seed)]:
                    self._own.compute(seed, lambda digests: talk.say("done", digests))
                case ["copy"]:
                    self._own.copy(lambda: talk.say("copied"))
                case ["ask"]:
                    self._ask(talk)
                    talk.say("thanks")
                case ["thanks"]:
                    return
                case ["over"]:
                    self._over.set()
                    return
                case _:
                    raise Broken(Way.FAILED)


def _works(rail: Rail) -> bool:
    return rail.sent.way is Way.OK and rail.received.way is Way.OK


def _is_right(said: Any, seed: int) -> bool:
    """Whether all devices of the partner have told the right digest."""
    match said:
        case [int(rows), [*digests]] if rows in PRODUCTS:
            right = expected(seed, rows)
            return bool(digests) and all(digest == right for digest in digests)
    return False


def _without_breaking(do: Callable[[], None]) -> None:
    """Do something with a connection, for as long as it does not break."""
    try:
        do()
    except Broken:
        pass
