"""What a node does and says of itself in a check: its rails, its devices, and how long its own work took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from taskd.check.sizes import PATIENCE_NS, SEEDS, time_of
from taskd.check.work import Device, expected, processors
from taskd.core.check.facts import Way, Work


class Own:
    """This node: its devices, and the addresses of its rails."""

    def __init__(self, devices: Sequence[Device], addresses: Mapping[str, str]) -> None:
        self.devices, self.addresses = devices, addresses
        self.size = devices[0].size
        self._right, self._tried = True, Work()
        self._compute_ns, self._memory_ns = list[int](), list[int]()

    def begin(self) -> None:
        """Forget the work of the test before."""
        self._right, self._compute_ns, self._memory_ns = True, [], []

    def work(self) -> Work:
        """What this node has done since `begin`, by its own word. If nobody has asked for it, what it did alone."""
        compute_ns = time_of(self._compute_ns) or self._tried.compute_ns
        return Work(self._right, compute_ns, time_of(self._memory_ns) or self._tried.memory_ns)

    def tried(self) -> Work:
        """Work some times without a partner, and return that. Each processor computes something."""
        right = expected(0, self.size.product)
        self._right &= all(device.compute(0, processors()) == right for device in self.devices)
        for attempt in range(self.size.tries):
            self.compute(attempt % SEEDS, lambda _digests: None)
            if sum(self._compute_ns) > PATIENCE_NS:
                break
        for _ in range(self.size.copies):
            self.copy(lambda: None)
            if sum(self._memory_ns) > PATIENCE_NS:
                break
        self._tried = self.work()
        return self._tried

    def compute(self, seed: int, tell: Callable[[list[object]], None]) -> None:
        """Multiply on all devices, and tell the digests."""
        begin = time.monotonic_ns()
        digests = [device.compute(seed) for device in self.devices]
        tell([self.size.product, digests])
        self._compute_ns.append(time.monotonic_ns() - begin)
        right = expected(seed, self.size.product)
        self._right &= all(digest == right for digest in digests)

    def copy(self, tell: Callable[[], None]) -> None:
        """Copy memory on all devices, and say so."""
        begin = time.monotonic_ns()
        for device in self.devices:
            device.copy()
        tell()
        self._memory_ns.append(time.monotonic_ns() - begin)

    def exchange(self) -> Way:
        """Let each device send to the next one."""
        following = (*self.devices[1:], self.devices[0])
        ways = {device.exchange(other) for device, other in zip(self.devices, following, strict=True)}
        return next((way for way in (Way.CORRUPT, Way.FAILED) if way in ways), Way.OK)
