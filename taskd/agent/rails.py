"""The state of this node's rails, read from its workers' counters: how the agent sees what the transport does.

Each worker hands over the descriptor of its counters (csrc/rail/counters.hpp) once it uses rails. The sums by rail and
peer node are made in C++ (taskd._native.RailTally). Here they become reports. Their values are limited, since a worker
may have written anything. The counts of a dead worker are kept. Reading does not cost the workers anything.
It does NOT decide what is reported when (core.rails.news) or what a state means (core.rails.rails).
"""

from __future__ import annotations

import time

from taskd import _native
from taskd.core.limits import MAX_ERRNO, MAX_NAME, MAX_RAIL_NAME, MS, RAIL_VERIFY_BYTES
from taskd.core.messages import RailReport
from taskd.core.types import RailState

SHARE = 50
"""Reading takes at most 1/SHARE of the agent's time: with very many lines, it reads less often."""
COUNT_MAX = 2**63 - 1
AGE_MS_MAX = 2**53


class Rails:
    """The counters of all workers of this node."""

    def __init__(self) -> None:
        self._tally = _native.RailTally(RAIL_VERIFY_BYTES)
        self._next_ns = 0

    def add(self, fd: int) -> int:
        """Add a worker's counters; returns their number. Raises ValueError or OSError if it cannot read them."""
        return self._tally.add(fd)

    def remove(self, number: int) -> None:
        """Remove a worker that is gone; its counts stay in the sums."""
        self._tally.remove(number)

    def read(self, now_ns: int) -> tuple[RailReport, ...]:
        """A report for each line of this node; none when it is too early to read again."""
        if now_ns < self._next_ns:
            return ()
        began = time.monotonic_ns()
        reports = tuple(_report(found, now_ns) for found in self._tally.read() if found.rail and found.node)
        self._next_ns = now_ns + SHARE * (time.monotonic_ns() - began)
        return reports


def _report(found: _native.RailSum, now_ns: int) -> RailReport:
    return RailReport(
        rail=found.rail[:MAX_RAIL_NAME],
        peer=found.node[:MAX_NAME],
        state=RailState(found.state),
        age_ms=max(0, min((now_ns - found.since_ns) // MS, AGE_MS_MAX)),
        pairs=found.pairs,
        pairs_up=found.pairs_up,
        pairs_moved=found.pairs_moved,
        bytes_out=min(found.bytes_out, COUNT_MAX),
        bytes_in=min(found.bytes_in, COUNT_MAX),
        round_trip_ns=max(0, found.round_trip_ns),
        downs=min(found.downs, COUNT_MAX),
        hedged=min(found.hedged, COUNT_MAX),
        retransmitted=min(found.retransmitted, COUNT_MAX),
        duplicates=min(found.duplicates, COUNT_MAX),
        last_error=max(0, min(found.last_error, MAX_ERRNO)),
        pairs_starved=found.pairs_starved,
    )
