"""Acts when the job stands still: the hang is reported, and a rank that a signal has stopped is replaced.

hangs.py finds the hang and the ranks that cause it. The repair replaces ranks. This is a module of its own, because the
manager uses it for two things: verdicts that it finds itself, and verdicts from its journal.
"""

from __future__ import annotations

from taskd.core.events import HangVerdict
from taskd.core.hangs import Hangs
from taskd.core.repair.repairs import Repairs
from taskd.core.times import Moment
from taskd.core.types import HangFinding


class Stuck:
    """The hangs of one job and what is done about them."""

    def __init__(self, hangs: Hangs, repairs: Repairs) -> None:
        self._hangs, self._repairs = hangs, repairs

    def find(self, at: int) -> HangVerdict | None:
        """Return what is to be reported or done now. Pass it to `take` and call again, until it returns None."""
        found, rules = self._hangs.find(at), self._repairs.rules
        return self._hangs.give_up(at, rules.max_restarts) if found is None and rules.may_replace_hung else found

    def take(self, verdict: HangVerdict, when: Moment) -> None:
        """Act on a verdict."""
        self._hangs.apply(verdict, when.at)
        if verdict.finding is HangFinding.GIVEN_UP:
            self._repairs.faults.hangs([*verdict.ranks], verdict.reason, verdict.age_ns, when)
