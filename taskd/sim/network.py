"""A network with a seed: it makes datagrams between named endpoints late, lost, doubled, out of order or cut off.

It is worse than the TCP that the shells use, on purpose. The core promises that a lost, repeated or overtaken message
changes nothing for longer than one repetition. The network carries the message objects themselves. The simulated shells
check that the messages also survive the wire's encoding.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskd.sim.loop import Loop

US = 1_000
MS = 1_000_000

KEPT_DATAGRAMS = 512
"""How many old datagrams are kept for a replay. The oldest are dropped first."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How bad the network is. Shares are of all datagrams."""

    name: str
    delay_ns: int  # the smallest delay
    jitter_ns: int  # added delay, evenly spread from 0 to this
    lost: float
    doubled: float
    late: float  # share with up to `late_ns` more delay, which later datagrams overtake most
    late_ns: int


CALM = Weather("calm", 100 * US, 400 * US, 0.0, 0.0, 0.0, 0)
WEATHERS = (
    CALM,
    Weather("busy", 200 * US, 20 * MS, 0.0, 0.01, 0.02, 200 * MS),
    Weather("lossy", 100 * US, 5 * MS, 0.05, 0.02, 0.02, 100 * MS),
    Weather("stormy", 100 * US, 30 * MS, 0.20, 0.10, 0.10, 800 * MS),
)


@dataclass(slots=True)
class Traffic:
    """Counts of what happened to the datagrams."""

    sent: int = 0
    lost: int = 0
    cut_off: int = 0
    doubled: int = 0
    replayed: int = 0


class Network:
    """Carries datagrams between endpoints that have attached themselves under a name."""

    def __init__(self, loop: Loop, rng: random.Random, weather: Weather) -> None:
        self.weather = weather
        self.traffic = Traffic()
        self._loop = loop
        self._rng = rng
        self._endpoints: dict[str, Callable[[str, Any], None]] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self._old: deque[tuple[str, str, Any]] = deque(maxlen=KEPT_DATAGRAMS)

    def attach(self, name: str, receive: Callable[[str, Any], None]) -> None:
        """`receive(source, datagram)` is called for each one that arrives at `name`."""
        self._endpoints[name] = receive

    def send(self, source: str, target: str, datagram: Any) -> None:
        """Send a datagram. The weather decides whether and how often it arrives."""
        weather, rng, traffic = self.weather, self._rng, self.traffic
        traffic.sent += 1
        self._old.append((source, target, datagram))
        if weather.lost and rng.random() < weather.lost:
            traffic.lost += 1
            return
        if weather.doubled and rng.random() < weather.doubled:
            traffic.doubled += 1
            self._post(source, target, datagram)
        self._post(source, target, datagram)

    def _post(self, source: str, target: str, datagram: Any) -> None:
        weather, rng = self.weather, self._rng
        delay_ns = weather.delay_ns + int(rng.random() * weather.jitter_ns)
        if weather.late and rng.random() < weather.late:
            delay_ns += int(rng.random() * weather.late_ns)
        self._loop.after(delay_ns, self._arrive, source, target, datagram)

    def _arrive(self, source: str, target: str, datagram: Any) -> None:
        if (source, target) in self._cuts:
            self.traffic.cut_off += 1
            return
        receive = self._endpoints.get(target)
        if receive is not None:
            receive(source, datagram)

    def replay(self, count: int) -> int:
        """Send old datagrams again, as an attacker or a forgotten queue would. Return how many."""
        chosen = self._rng.sample(list(self._old), min(count, len(self._old)))
        for source, target, datagram in chosen:
            self.traffic.replayed += 1
            self._post(source, target, datagram)
        return len(chosen)

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between the two, either way, until every cut between them is mended."""
        for pair in ((one, other), (other, one)):
            self._cuts[pair] = self._cuts.get(pair, 0) + 1

    def mend(self, one: str, other: str) -> None:
        """Remove one cut between the two."""
        for pair in ((one, other), (other, one)):
            left = self._cuts.get(pair, 0) - 1
            if left > 0:
                self._cuts[pair] = left
            else:
                self._cuts.pop(pair, None)

    def is_cut(self, one: str, other: str) -> bool:
        """Whether nothing passes between the two."""
        return (one, other) in self._cuts
