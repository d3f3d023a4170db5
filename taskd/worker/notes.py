"""What each loop finds when it begins, noted for whoever replaces this rank, and compared by a newcomer.

What is noted, and why, stands in state/found.py. The note goes into the ledger, which a newcomer has before it joins
anybody. One that comes to the loop of its life before and finds something else there refuses, with the name.
It does NOT see what a newcomer finds in a loop that its life before has not come to.
"""

from __future__ import annotations

from taskd.state.coverage import listed
from taskd.state.found import Findings, unlike
from taskd.state.ledger import Ledger
from taskd.worker.heal import Repair
from taskd.worker.registered import Registered

WHAT = "what the loop finds"
UNLIKE = (
    "the loop uses {names}, and this newcomer has found something else there than its life before: what stands before "
    "the loop has made it from weights that were trained, or at random, and nobody registered it; name it in "
    "taskd.session().register(), or let session.between() give it"
)


class Notes:
    """Of one session."""

    def __init__(self, registered: Registered, ledger: Ledger, repair: Repair) -> None:
        self._registered, self._ledger, self._repair = registered, ledger, repair
        self._mine: Findings = {}

    def loop_begins(self, loop: int) -> None:
        """Note what there is."""
        if not self._repair.records:
            return
        self._mine = self._registered.doubts.look(WHAT, self._registered.found) or {}
        if not self._repair.newcomer:
            self._ledger.loop, self._ledger.found = loop, self._mine
            self._ledger.save()

    def flaw(self, loop: int) -> str:
        """Why a newcomer that has come to this loop must not go on there, or nothing."""
        names = unlike(self._mine, self._ledger.found) if loop == self._ledger.loop else []
        return UNLIKE.format(names=listed(names)) if names else ""
