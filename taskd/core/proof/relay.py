"""Proofs of one node's ranks on their way to the manager. Alone, since this part belongs to the agent.

They are kept until the next beat, and no longer. A node tells those of all its ranks in one message. While nobody hears
it, the newest of each rank are kept, and the older ones go: what a lost proof would have shown, the next one of the
same slice shows. It compares nothing.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.crew import Crew
from taskd.core.messages import Proof, Proofs


class ProofRelay:
    """What waits for the next beat."""

    def __init__(self, crew: Crew, counters: Counters) -> None:
        self._crew = crew
        self._counters = counters
        self._waiting: dict[int, list[Proof]] = {}

    def told(self, proof: Proof) -> None:
        """A rank of this node has said what it holds."""
        record = self._crew.ranks.get(proof.rank)
        if record is None or record.incarnation != proof.incarnation or not record.live:
            self._counters.count("proof of another incarnation")
            return
        waiting = self._waiting.setdefault(proof.rank, [])
        waiting.append(proof)
        if len(waiting) > limits.PROOF_SENT:
            del waiting[0]

    def due(self) -> Proofs | None:
        """All that the beat of now tells."""
        if not self._waiting:
            return None
        proofs = tuple(proof for waiting in self._waiting.values() for proof in waiting)
        self._waiting.clear()
        return Proofs(proofs)
