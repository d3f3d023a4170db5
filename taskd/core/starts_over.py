"""How often all ranks began anew, which steps that has cost, and what makes it necessary the next time a rank is lost.

The first two are counted for one incident, and for the whole job.

A step is lost if it was seen to be done before all began anew, unless the last checkpoint holds it. What a script takes
up from checkpoints of its own is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core.words import lost_words


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
class StartsOver:
    """The starts of all ranks so far."""

    times: int = 0
    steps_lost: int = 0
    saved: bool = False  # a last checkpoint was written before one of them
    damaged: str = ""  # what ranks no longer hold alike, since the last one; empty: nothing
    unlike: str = ""  # what ranks never held alike, as the script wants it; empty: nothing

    def count(self, steps: int, saved: int) -> None:
        """All ranks begin anew. `steps`: how many were done until now; `saved`: how many of them the last checkpoint
        holds; -1: there is none."""
        self.times += 1
        self.steps_lost += max(steps - max(saved, 0), 0)
        self.saved |= saved >= 0
        self.damaged = ""

    @property
    def irreplaceable(self) -> str:
        """Why no rank's state can replace another's. Empty: it can."""
        what = self.damaged or self.unlike
        return f"{what} is not the same on all ranks, and no rank's state can replace another's" if what else ""

    @property
    def lost(self) -> str:
        """What they have cost, in words."""
        return lost_words(self.steps_lost, self.saved)
