"""The answer to a difference between ranks that held the same state: an incident of its own, and all ranks start over.

Why no cheaper repair: the results of a damaged rank have reached the other ranks with the gradients. So no rank holds
what an undisturbed run would hold. Replacing that rank would make all ranks equal, but equally wrong. So all ranks
start over, from the script's own checkpoint if the script loads one. Failure modes, and what follows:

- *The same item differs again*: it is reported and nothing is done. Starting over has not helped, so the script itself
  makes its ranks differ. In total, all ranks start over at most PROOF_STARTS_OVER times, for whichever items.
- *Three ranks or more, and it is unknown which one is wrong*: a single damaged replica does not look like that, but a
  script whose ranks do different things does. It is reported, and nothing is done. If some of these ranks took it from
  others in a repair, what they had is lost, so all start over.
- *Ranks never held something alike*: nothing is done before a rank is lost. Then no other rank has its state.
- *Only items differ that change no weight by themselves* (modes of modules, a scheduler's best metric): a script may
  intend that. It is reported, and nothing is done until a setting, a weight or a moment differs, too.
- *Recovery is off, or ranks have left already*: the same.

Invariants: every difference is an incident. A job is never ended for it. Not here: the comparison (proofs.py).
"""

from __future__ import annotations

from collections import deque

from taskd.core import limits
from taskd.core.events import ProofVerdict
from taskd.core.job import Job
from taskd.core.proof.proofs import LIST, Proofs
from taskd.core.repair.incident import Incident, IncidentCause
from taskd.core.repair.repairs import Repairs
from taskd.core.times import Moment
from taskd.core.types import Outcome, ProofFinding, RankState, Strategy
from taskd.core.words import cut, verb


class Doubts:
    """The differences found so far, and how often all ranks have started over for them."""

    def __init__(self, job: Job, repairs: Repairs, proofs: Proofs) -> None:
        self._job = job
        self._repairs = repairs
        self._proofs = proofs
        self.history: deque[Incident] = deque(maxlen=limits.MAX_KEPT_INCIDENTS)
        self.found = 0
        self._items: set[str] = set()
        self._restarts = 0

    def take(self, verdict: ProofVerdict, when: Moment) -> None:
        """Act on a verdict about the proofs, new or from the journal."""
        self._proofs.take(verdict)
        over = self._job.starts_over
        if verdict.finding is not ProofFinding.DIFFERS:
            self._compared(verdict)
            return
        self.found += 1
        if not verdict.harmless:
            over.damaged = over.damaged or verdict.item
        if verdict.taken and not verdict.named and not verdict.harmless:
            over.unlike = over.unlike or verdict.item
        why_not = self._why_not(verdict)
        if why_not:
            self._observe(verdict, f"{verdict.reason}; {why_not}: observe", when.now)
            return
        self._items.add(verdict.item)
        self._restarts += 1
        self._repairs.faults.doubted("proof", verdict.reason, verdict.ranks, when)

    def _compared(self, verdict: ProofVerdict) -> None:
        """It was seen what ranks never held alike."""
        over, reason = self._job.starts_over, verdict.reason
        if verdict.finding is ProofFinding.BASE and over.unlike == LIST:
            over.unlike = ""
        if verdict.item:
            over.unlike = over.unlike or verdict.item
            if Strategy.RESPAWN in self._repairs.rules.allowed:
                reason += "; so no rank's state can replace another's: if a rank is lost, all start over"
        if reason:
            self._job.note("proof", reason, incident=0)

    def _why_not(self, verdict: ProofVerdict) -> str:
        """Why the ranks do not start over. Empty: they do."""
        rules, members = self._repairs.rules, self._job.members
        if self._job.over is not None:
            return "the job is over"
        if not rules.recover or Strategy.RESPAWN not in rules.strategies:
            return "recovery is off in this job"
        if verdict.item in self._items:
            return "all have started over for this before, and it has not helped"
        if self._restarts >= limits.PROOF_STARTS_OVER:
            return f"all have started over {self._restarts} times for such things, which is the limit"
        if verdict.harmless:
            return "this by itself changes no weight, and a script may mean it"
        if not verdict.named and not verdict.taken and len(verdict.ranks) > 2:
            return "this is no damage to one of them: the script makes its ranks unlike"
        if left := members.counts[RankState.LEFT]:
            return f"{left} {verb(left, 'rank has', 'ranks have')} left already"
        if any(record.node is None or not record.node.starts for record in members.ranks):
            return "not all ranks can be started again"
        return ""

    def _observe(self, verdict: ProofVerdict, reason: str, now: int) -> None:
        """Write down an incident that is closed at once."""
        members = self._job.members
        incident = Incident(self._job.next_incident(), "proof", now)
        where = [record.where for rank in verdict.ranks if (record := members.find(rank)) is not None]
        incident.concern(verdict.reason, verdict.ranks, where)
        incident.reason = cut(reason)
        incident.move(IncidentCause.OBSERVE)
        incident.close(IncidentCause.BACK, Outcome.OBSERVED, now)
        self.history.append(incident)
        self._job.note("proof", f"{reason}, incident {incident.id}", incident=incident.id)
