"""How long a job pauses: the longest time without any progress that it has come out of by itself, by phase.

The first steps of an epoch teach nothing: caches are filled, kernels compiled and buckets settled in them. A pause of
minutes there would later hide every hang. After these steps nothing is forgotten: a usual pause may come again. This is
a module of its own, because it knows only numbers. hangs.py decides what a pause means.
"""

from __future__ import annotations

from collections.abc import Iterable

from taskd.core import limits
from taskd.core.types import Phase


class Rhythm:
    """The pauses of one job."""

    def __init__(self) -> None:
        self._longest_ns: dict[Phase, int] = {}
        self._epoch = -1
        self._first_step = -1  # the first step that was seen in this epoch
        self._step = -1

    def see(self, epoch: int, step: int) -> bool:
        """Take how far the job has come; before its first step that is below zero. Return whether that is further than
        at the last call."""
        if step < 0:
            return False
        further = step > self._step >= self._first_step >= 0
        if epoch != self._epoch or step < self._first_step:
            self._epoch, self._first_step, further = epoch, step, False
        self._step = step
        return further

    @property
    def known(self) -> bool:
        """Whether enough steps were seen."""
        return self._step - self._first_step >= limits.STILL_WARM_STEPS

    def took(self, phases: Iterable[Phase], pause_ns: int) -> None:
        """The job has paused for this long, while ranks that waited for no other rank were in these phases."""
        if self.known:
            for phase in phases:
                self._longest_ns[phase] = max(self._longest_ns.get(phase, 0), pause_ns)

    def allowed(self, least_ns: int, phases: Iterable[Phase]) -> int:
        """Return how long a pause in these phases may be: `least_ns`, or more if the longest known one was long."""
        longest_ns = max((self._longest_ns.get(phase, 0) for phase in phases), default=0)
        return max(least_ns, limits.STILL_FACTOR * longest_ns)
