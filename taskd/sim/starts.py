"""Checks that a rank whose starts come to nothing is started ever more seldom. A rule of its own: it follows ranks, not
groups.

It sees each start by an agent and each death that no agent has ordered, and how far the training was. It knows nothing
of the core's own count, which may be behind by a death: another order may replace a process in the moment it dies. So
a rank may have one more start than the core allows before it must rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core import limits

SLACK = 1


@dataclass
class _Rank:
    started_at: int = -1
    steps: int = 0
    died_at: int = -1
    vain: int = 0


class Starts:
    """The starts of all ranks."""

    def __init__(self) -> None:
        self._ranks: dict[int, _Rank] = {}
        self._ordered: set[int] = set()

    def ordered(self, pid: int) -> None:
        """An agent ends this process."""
        self._ordered.add(pid)

    def started(self, rank: int, now: int, steps: int) -> str:
        """An agent starts a process of this rank. `steps`: how many steps the job has made, with those made again.
        Return a complaint if that is too soon."""
        complaint = ""
        one = self._ranks.setdefault(rank, _Rank())
        rests = one.vain - SLACK - limits.RESTARTS_AT_ONCE
        if rests >= 0 and one.died_at >= 0:
            pause_ns = min(limits.RESTART_PAUSE_NS << rests, limits.RESTART_PAUSE_MAX_NS)
            if now - one.died_at < pause_ns:
                waited_ms = (now - one.died_at) // limits.MS
                complaint = f"rank {rank} is started {waited_ms} ms after vain start {one.vain}"
        one.started_at, one.steps, one.died_at = now, steps, -1
        return complaint

    def died(self, rank: int, pid: int, now: int, steps: int) -> None:
        """A process of this rank has ended."""
        one = self._ranks.get(rank)
        if one is not None and pid not in self._ordered and one.started_at >= 0:
            vain = now - one.started_at < limits.RESTART_SOON_NS and steps == one.steps
            one.vain = one.vain + 1 if vain else 0
            one.died_at = now

    def forget(self) -> None:
        """The manager may have lost its memory."""
        self._ranks.clear()
