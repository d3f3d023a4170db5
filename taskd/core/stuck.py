"""What follows where the job stands still: it is said, and a rank that a signal has stopped is replaced.

What stands still, and who is to blame, is found in hangs.py, and how ranks are replaced is for the repair. Alone, since
the manager takes both from here: what it finds by itself, and what its journal says that it has found.
"""

from __future__ import annotations

from taskd.core.events import HangVerdict
from taskd.core.hangs import Hangs
from taskd.core.repair.repairs import Repairs
from taskd.core.times import Moment
from taskd.core.types import HangFinding


class Stuck:
    """Of one job."""

    def __init__(self, hangs: Hangs, repairs: Repairs) -> None:
        self._hangs, self._repairs = hangs, repairs

    def find(self, at: int) -> HangVerdict | None:
        """What is to be said or done now; to be taken, and asked for again, until there is nothing more."""
        found, rules = self._hangs.find(at), self._repairs.rules
        return self._hangs.give_up(at, rules.max_restarts) if found is None and rules.may_replace_hung else found

    def take(self, verdict: HangVerdict, when: Moment) -> None:
        """This was found."""
        self._hangs.apply(verdict, when.at)
        if verdict.finding is HangFinding.GIVEN_UP:
            self._repairs.faults.hangs([*verdict.ranks], verdict.reason, verdict.age_ns, when)
