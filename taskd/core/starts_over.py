"""How often all ranks began anew, which steps that has cost, and what makes it necessary the next time a rank is lost.

The first two are counted for one incident, and for the whole job.

Failure mode: a script raises the same error in the same step again and again, or a rank refuses the same step each
time. No rank dies of that, so nobody's restarts are used up. So such starts of all ranks are counted, as long as each
comes after as many steps (one may not have been heard of) and the last checkpoint does not hold these. Differences that
ranks were found to have do not count, since no job is ended for them.

A step is lost if it was seen to be done before all began anew, unless the last checkpoint holds it. What a script takes
up from checkpoints of its own is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.core import limits
from taskd.core.words import lost_words, verb


@dataclass(slots=True)
class LastCheckpoint:
    """What became of the last checkpoint."""

    updates: int = -1  # after which it was written, since all began; -1: there is none
    text: str = ""  # who wrote it, or why there is none; empty: none was asked for
    since: int | None = None  # when it was asked for; None: it is not asked for now
    took_ns: int = 0  # how long that has taken together, less the time since then
    stops: str = ""  # why the job ends when it is written, although nothing has failed; empty: it does not

    def spent_ns(self, now: int) -> int:
        """How long it has taken so far."""
        return self.took_ns + (0 if self.since is None else now - self.since)

    def ends(self, now: int) -> None:
        """It is written, or not waited for any longer."""
        self.took_ns, self.since = self.spent_ns(now), None


@dataclass(slots=True)
class Row:
    """Starts of all ranks that have come to the same end, one after the other."""

    times: int = 0
    steps: int = 0  # how many steps were done before the first one of them
    at: int = 0  # when the last one of them was

    def goes_on(self, steps: int, now: int) -> bool:
        """Whether another start, after so many steps, comes to the same end."""
        recent = now - self.at < limits.RESTART_FORGOTTEN_NS
        return self.times > 0 and recent and abs(steps - self.steps) <= 1

    def count(self, steps: int, now: int) -> None:
        """All ranks begin anew, after so many steps."""
        if not self.goes_on(steps, now):
            self.times, self.steps = 0, steps
        self.times, self.at = self.times + 1, now


@dataclass(slots=True)
class StartsOver:
    """The starts of all ranks so far."""

    times: int = 0
    steps_lost: int = 0
    saved: bool = False  # a last checkpoint was written before one of them
    damaged: str = ""  # what ranks no longer hold alike, since the last one; empty: nothing
    unlike: str = ""  # what ranks never held alike, as the script wants it; empty: nothing
    row: Row = field(default_factory=Row)  # the last ones that came to the same end

    def count(self, steps: int, saved: int, now: int, own: bool) -> None:
        """All ranks begin anew. `steps`: how many were done until now; `saved`: how many of them the last checkpoint
        holds; -1: there is none; `own`: nobody's restarts are used up by the cause."""
        if own and not self.damaged and not _is_kept(steps, saved):
            self.row.count(steps, now)
        else:
            self.row.times = 0
        self.times += 1
        self.steps_lost += max(steps - max(saved, 0), 0)
        self.saved |= saved >= 0
        self.damaged = ""

    def in_vain(self, steps: int, saved: int, now: int, most: int) -> str:
        """Why another start would not help, if the job is now after so many steps and `most` starts in a row may come
        to the same end. Empty: it may help. `saved`: see count."""
        times = self.row.times
        if self.damaged or times < most or _is_kept(steps, saved) or not self.row.goes_on(steps, now):
            return ""
        often = verb(times, "once", f"{times} times in a row")
        return f"after about {self.row.steps} steps all ranks have started over {often}, which is the limit"

    @property
    def irreplaceable(self) -> str:
        """Why no rank's state can replace another's. Empty: it can."""
        what = self.damaged or self.unlike
        return f"{what} is not the same on all ranks, and no rank's state can replace another's" if what else ""

    @property
    def lost(self) -> str:
        """What they have cost, in words."""
        return lost_words(self.steps_lost, self.saved)


def _is_kept(steps: int, saved: int) -> bool:
    """Whether the last checkpoint holds what was done, so the next start goes on from there."""
    return saved > 0 and saved >= steps - 1
