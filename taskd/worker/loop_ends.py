"""The end of a loop: do all ranks end it after as many steps, and may they meet there?

Ranks with unlike numbers of batches end a loop apart, if nothing is communicated in their last steps (gradients that
accumulate under `no_sync`), or in torch's Join, where a rank that has ended answers the collectives of the others. Then
steps with one number no longer belong together on two ranks. That is no error. But from there on no proof can be made,
and after a death all start over. This module finds that out and says it once. The loop itself is session.py.
"""

from __future__ import annotations

from taskd.errors import StepAbandoned, UsageError
from taskd.worker import joining
from taskd.worker.heal import Repair
from taskd.worker.place import Place
from taskd.worker.registered import Registered
from taskd.worker.transaction import Transaction

APART = (
    "this loop has ended after {steps} steps on rank 0 and after {others} on rank {other}, or {all} and {all_others} "
    "with those of earlier loops; from here on nobody can tell which steps belong together, so no proofs are made, and "
    "after a death or an error all start over; give all ranks equally many batches"
)
JOINED = (
    "the loop stands in torch's Join, so ranks may end it after unlike numbers of steps: they do not meet at its end, "
    "and make no proofs; if a rank dies, all start over"
)
NO_MEETING = (
    "between() was called inside of torch's Join, where ranks may have ended apart: call it behind `with Join(...)`"
)
_UNKNOWN = -1
"""The length of a loop whose loader does not tell it."""


class LoopEnds:
    """The ends of one session's loops."""

    def __init__(self, place: Place, registered: Registered, transaction: Transaction, repair: Repair) -> None:
        self._place = place
        self._registered = registered
        self._transaction = transaction
        self._repair = repair
        joining.watch()

    @property
    def may_part(self) -> bool:
        """Whether some ranks may wait inside of torch's Join while others still train."""
        return self._place.uneven and joining.is_joined()

    def check_meeting(self) -> None:
        """Raises UsageError where ranks must not wait for each other."""
        if self.may_part:
            raise UsageError(NO_MEETING)

    def loop_begins(self, length: int | None) -> None:
        """A loop of so many steps begins (None: its loader does not tell). Inside of Join, ranks compare this now: they
        could not do so at its end."""
        if self._place.uneven or self._repair.newcomer or not joining.is_joined():
            return
        try:
            lengths = self._repair.together.numbers([_UNKNOWN if length is None else length])
        except StepAbandoned:  # the repair sees that there is a flaw now
            lengths = [[_UNKNOWN]]
        if lengths[0] == [_UNKNOWN] or any(one != lengths[0] for one in lengths):
            self._are_apart(JOINED)

    def all_at(self, end: int, steps: int) -> bool:
        """Wait for all ranks at the end of a loop of so many steps, after the update `end`, and settle what there is to
        settle. Return False if a repair came, so the loop must check again."""
        transaction, ends = self._transaction, self._place.ends
        transaction.variables.arrives(end)
        known = len(ends)
        if not self._repair.together.all_arrived(transaction.heal) or len(ends) > known:
            return False
        try:
            theirs = self._repair.together.numbers([end, steps])
        except StepAbandoned:
            transaction.heal()
            return False
        all_ends, counts = zip(*theirs, strict=True)
        if other := next((rank for rank, one in enumerate(all_ends) if one != all_ends[0]), 0):
            told = {"steps": counts[0], "all": all_ends[0], "others": counts[other], "all_others": all_ends[other]}
            self._are_apart(APART.format(other=other, **told))
        return transaction.variables.loop_ends(end, transaction.heal)

    def _are_apart(self, sentence: str) -> None:
        """From here on, ranks that have done as many steps may not hold the same."""
        if not self._place.uneven:
            self._place.uneven = True
            self._transaction.prover.stop()
            self._registered.coverage.flaws.append(sentence)
            self._registered.warn([sentence])
            self._registered.tell_cover()
