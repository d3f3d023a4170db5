"""The proofs of one node's ranks on their way to the manager. A module of its own, since it belongs to the agent.

Proofs are kept until the node's next report, and no longer: the manager has to know them before it hears that a rank
has died or parked. A node sends those of all its ranks in one message. While the
manager does not hear the node, the newest proofs of each rank are kept and older ones are dropped. The next proof of
the same slice shows what a lost proof would have shown. It compares nothing.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.crew import Crew
from taskd.core.messages import Proof, Proofs


class ProofRelay:
    """The proofs that wait for the next report."""

    def __init__(self, crew: Crew, counters: Counters) -> None:
        self._crew = crew
        self._counters = counters
        self._waiting: dict[int, list[Proof]] = {}

    def told(self, proof: Proof) -> None:
        """Take a proof of a rank of this node, which may have died since."""
        record = self._crew.ranks.get(proof.rank)
        if record is None or record.incarnation != proof.incarnation:
            self._counters.count("proof of another incarnation")
            return
        waiting = self._waiting.setdefault(proof.rank, [])
        waiting.append(proof)
        if len(waiting) > limits.PROOF_SENT:
            del waiting[0]

    def due(self) -> Proofs | None:
        """All proofs for the report that is sent now."""
        if not self._waiting:
            return None
        proofs = tuple(proof for waiting in self._waiting.values() for proof in waiting)
        self._waiting.clear()
        return Proofs(proofs)
