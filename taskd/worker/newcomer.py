"""The work of a newcomer before it trains: it rehearses a step, reaches the loop of the other ranks, takes the state.

A rehearsed step runs the script's body on some batch and sends nothing, so that DistributedDataParallel learns its
layout. If this rank's life before was in a later loop, everything before that loop is a rehearsal, too (passage.py).
The state comes last, in a repair. If the life before died after an update, it may have left functions of
step.on_commit() undone. The newcomer rehearses that step to get the functions, and calls them with the ledger's values.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator

from taskd.state.coverage import listed
from taskd.state.variables import restoring
from taskd.worker.counting import WHAT
from taskd.worker.feed import Feed
from taskd.worker.heal import Repair
from taskd.worker.passage import Passage
from taskd.worker.place import Place
from taskd.worker.refusal import Refusal
from taskd.worker.registered import Registered
from taskd.worker.step import Step
from taskd.worker.transaction import Transaction

DECIDED = (
    "a newcomer's rehearsal of a step has changed {names}: if it decided so by weights that nobody has trained, going "
    "on would be wrong; let the script ask Step.rehearsal"
)


class Newcomer:
    """The newcomer's part in one process. In a process that is no newcomer it has almost nothing to do."""

    def __init__(
        self,
        registered: Registered,
        transaction: Transaction,
        repair: Repair,
        passage: Passage,
        place: Place,
        refusal: Refusal,
    ) -> None:
        self._registered, self._transaction, self._repair = registered, transaction, repair
        self._passage, self._place, self._refusal = passage, place, refusal

    def comes_to(self, feed: Feed) -> Generator[Step, None, bool]:
        """Handle that the script has reached a loop. Return whether this rank trains in it; False: the others have
        already finished that loop."""
        repair, place, doubts = self._repair, self._place, self._registered.doubts
        ordinal = place.loops
        why_not = (doubts.sentence if repair.newcomer else "") or self._transaction.variables.notes.flaw(ordinal)
        if why_not:
            self._refusal.refuse(why_not)
        if repair.newcomer:
            self._passage.begin()
            if not place.epoch or ordinal >= repair.loop_before:
                # A loop of a later epoch was rehearsed in the first one.
                yield from self._rehearse(feed, passes_loop=ordinal < repair.loop_before)
            if ordinal < repair.loop_before:
                self._transaction.variables.goes_by()
                return False
        if self._passage.under_way:
            self._passage.end()
        if repair.newcomer:
            variables = self._registered.local.variables
            before = doubts.look(WHAT, restoring, variables)
            self._transaction.heal()
            doubts.look(WHAT, restoring, variables, before)
            self._registered.coverage.rebase()
        return True

    def _rehearse(self, feed: Feed, passes_loop: bool) -> Iterator[Step]:
        replica = self._registered.replica
        static = any(getattr(model, "static_graph", False) for model in replica.parallel())
        for _ in range(2 if static else 1):  # with a static graph, DDP learns in the second step
            self._transaction.variables.numbers_rehearsal(feed)
            yield self._transaction.hand_out_rehearsal(0, feed.sample(), passes_loop=passes_loop)
            self._rehearsed()
        self._registered.doubts.look("what a rehearsal has left", self._forget_gradients)
        if self._registered.doubts.sentence:
            self._refusal.refuse(self._registered.doubts.sentence)

    def _rehearsed(self) -> None:
        """Note that the script asks for the next step after a rehearsed one. Raises UsageError, as check_used()."""
        registered, transaction = self._registered, self._transaction
        transaction.check_used()
        if unsure := registered.doubts.look("what a rehearsal has left", registered.calls.rehearsing.over):
            self._refusal.refuse(DECIDED.format(names=listed(unsure)))
        transaction.variables.rehearsed()

    def _forget_gradients(self) -> None:
        self._registered.replica.fully_sharded.reset()
        self._registered.replica.fully_sharded.clear()
        for parameter in self._registered.local.parameters():
            parameter.grad = None

    def pay(self, feed: Feed) -> Iterator[Step]:
        """Do what the step before was to do when its update was agreed, and what this newcomer still owes."""
        transaction, local = self._transaction, self._registered.local
        moment = local.capture(transaction.carries_on())
        self._passage.go_after()
        transaction.variables.numbers(transaction.updates - 1, feed)
        yield transaction.hand_out_rehearsal(transaction.updates - 1, feed.sample())
        self._rehearsed()
        self._passage.end()
        local.restore(moment)
        if sentence := transaction.effects.differ():
            self._refusal.refuse(sentence)
        transaction.effects.pay(transaction.updates)
