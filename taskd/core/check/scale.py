"""When a time is much longer than usual: by its ratio to the median, and by how much the others spread.

The median is that of the faster half of the nodes. So up to half of the nodes may be slow without passing for the usual
ones, with four nodes as with two. The spread is the median distance from there within that half, scaled so that it
equals the standard deviation where times are normally distributed. Both conditions have to hold: the ratio alone would
accuse nodes of a machine on which all times vary, and the spread alone nodes that are a little behind very even ones.

This module knows only numbers: views.py says which times are compared.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from statistics import median_low

from taskd.core import limits

SPREAD = 2.5
"""The standard deviation of normally distributed numbers, in median distances from their lower quartile of those below
their median."""


@dataclass(frozen=True, slots=True)
class Scale:
    """What is usual."""

    usual_ns: int
    spread_ns: float

    def slow(self, time_ns: int) -> bool:
        """Whether this is much longer than usual."""
        far = time_ns - self.usual_ns >= limits.CHECK_SLOW_SPREADS * self.spread_ns
        return far and time_ns * 100 >= self.usual_ns * limits.CHECK_SLOW_PERCENT

    def ratio(self, time_ns: int) -> float:
        """How many times as long as usual."""
        return time_ns / max(self.usual_ns, 1)


def scale(best: Collection[int]) -> Scale | None:
    """Return the scale that follows from the best time of each node. None: there is no time."""
    if not best:
        return None
    faster = sorted(best)[: (len(best) + 1) // 2]
    usual_ns = median_low(faster)
    return Scale(usual_ns, SPREAD * median_low(abs(time_ns - usual_ns) for time_ns in faster))
