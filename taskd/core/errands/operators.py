"""What operators want of a job: its pause and its errand, side by side.

An errand lets ranks stand by a pause, so the two are asked, judged and shown together, the errand first. It does NOT
know rails, which have their own orders (rails).
"""

from __future__ import annotations

from typing import Any

from taskd.core.errands import facts as errand_facts
from taskd.core.errands.errands import Errands
from taskd.core.events import ErrandVerdict, ErrandWish, PauseVerdict, PauseWish
from taskd.core.job import Job
from taskd.core.pause import facts as pause_facts
from taskd.core.pause.pauses import Pauses, PauseState
from taskd.core.proof.proofs import Proofs
from taskd.core.repair.repairs import Repairs
from taskd.core.times import Moment
from taskd.core.types import RankState


class Operators:
    """The pause and the errand of one job, if there are any."""

    def __init__(self, job: Job, repairs: Repairs, proofs: Proofs) -> None:
        self.pauses = Pauses(job)
        self.errands = Errands(job, self.pauses, repairs, proofs)
        self._job, self._members = job, job.members
        self._case = repairs.case

    def wish(self, wish: PauseWish | ErrandWish, now: int) -> PauseWish | ErrandWish | str | None:
        """Return the wish if it can be followed, or else the reason. None: it was followed already."""
        case = self._case
        repairing = "" if not case.busy else case.incident.reason if case.incident is not None else "a rank is missing"
        if isinstance(wish, PauseWish):
            return self.pauses.wish(wish, repairing)
        return self.errands.wish(wish, repairing, now)

    def find(self, now: int) -> PauseVerdict | ErrandVerdict | None:
        """Return what is to be done now. Pass it to `take` and call again, until it returns None."""
        return self.errands.find(now) or self.pauses.find(now, self._case.busy)

    def take(self, event: PauseWish | PauseVerdict | ErrandWish | ErrandVerdict, when: Moment) -> None:
        """Follow a wish, or do what was found."""
        if isinstance(event, PauseWish):
            self.pauses.take(event, when)
        elif isinstance(event, PauseVerdict):
            self.pauses.apply(event, when)
        elif isinstance(event, ErrandWish):
            self.errands.take(event, when)
        else:
            self.errands.apply(event, when)

    def facts(self, now: int, request: str) -> dict[str, Any]:
        """Return how pause and errand stand, and where each rank is. `request`: of the errand; empty: the open one."""
        errand = errand_facts.of_errand(self.errands, self._members, request)
        job = {"settled": self._settled(), "over": "" if self._job.over is None else self._job.over.reason}
        return {**pause_facts.of_ranks(self.pauses, self._members, now), **job, "errand": errand}

    def _settled(self) -> bool:
        """Whether the end of a node's work that is refused now would be refused later, too: nobody could write, and no
        node has room, or no repair, pause or errand is under way, and all ranks are heard."""
        members, pause = self._members, self.pauses.pause
        could = any(record.saves for record in members.ranks) or any(map(members.free_slots, members.nodes.values()))
        if not could or not members.trained or members.counts[RankState.LEFT]:
            return True
        comes = pause is not None and pause.state is not PauseState.STANDS
        heard = members.counts[RankState.ALIVE] == members.world_size
        repairing = self._case.busy or self._case.attempts.attempt is not None
        return heard and not comes and not repairing and self.errands.errand is None
