"""What this rank holds, as a repair asks for it and changes it: the session's side of heal.py and state/restore.py.

Invariants: a rank that holds half an update, or half of another rank's state, holds nothing (`held` is -1), and says so
until it stands again. Where a step was seen to its end this rank's own moment of it is put back; where it was not, the
update of another rank comes in and this rank's own buffers stay.
It decides nothing about the repair.
"""

from __future__ import annotations

import torch

from taskd.errors import PeerError, UsageError
from taskd.state.local import Buffers
from taskd.state.record import Occasion
from taskd.state.replica import Replica
from taskd.worker.between import Between
from taskd.worker.heal import Repair
from taskd.worker.loaders import Loaders
from taskd.worker.place import Place
from taskd.worker.refusal import Refusal
from taskd.worker.registered import Registered
from taskd.worker.step_state import StepEvent, StepState
from taskd.worker.transaction import Transaction

MISSED = (
    "the loop draws random numbers, or writes into buffers or what is registered as local, {where}, and the rank that "
    "died may have done so since its last record: what it has drawn or written nobody knows"
)


class Standing:
    """Of one session: the `Loop` of heal.py."""

    def __init__(
        self,
        registered: Registered,
        transaction: Transaction,
        repair: Repair,
        between: Between,
        loaders: Loaders,
        place: Place,
        refusal: Refusal,
    ) -> None:
        self._registered, self._transaction, self._repair = registered, transaction, repair
        self._between, self._loaders, self._place, self._refusal = between, loaders, place, refusal
        self._own_buffers: Buffers | None = None  # set aside while another rank's model comes in

    # ---- what a repair asks -----------------------------------------------------------------------------------

    @property
    def replica(self) -> Replica:
        """What every replica holds."""
        return self._registered.replica

    @property
    def part(self) -> int:
        """Of the model: see state/parts.py."""
        return self.replica.part

    @property
    def origin(self) -> int:
        """What the parameters were before the first step, as a number; -1: there was none yet."""
        return self._registered.local.origin

    @property
    def ends(self) -> list[int]:
        """Where each loop that is over has ended."""
        return self._place.ends

    @property
    def passed(self) -> int:
        """How many pieces of work between loops are over on all ranks, as far as this one knows."""
        return self._between.passed

    def refusal(self, updates: int) -> str:
        """Why going on after so many updates would be wrong, or nothing."""
        return self._refusal.of(updates)

    def held(self) -> int:
        """The updates that this rank's parameters and optimizers hold, whole; -1: none."""
        torn = self._transaction.step.state is StepState.TORN
        return -1 if torn or self._repair.newcomer else self._transaction.updates

    def flaw(self) -> str:
        """Why what this rank holds is not all that its training needs, or nothing."""
        if self._repair.newcomer:
            return ""
        doubts = self._registered.doubts
        return doubts.look("what this rank holds", self._flaw) or doubts.sentence

    def _flaw(self) -> str:
        registered, transaction = self._registered, self._transaction
        registered.done_outside(transaction.outside())
        if transaction.checked:
            registered.warn(registered.coverage.check())
        if transaction.step.state is StepState.TORN and registered.calls.reversal.torn_by:
            return registered.calls.reversal.torn_by
        if registered.coverage.flaws:
            return registered.coverage.flaws[0]
        if flaw := self._between.flaw() or self._loaders.flaw():
            return flaw
        begun, feed = transaction.begun, transaction.feed
        doing_again = begun is not None and begun.number == transaction.updates
        return feed.spoilt() if doing_again and feed is not None else ""

    def carried(self) -> tuple[int, bytes, dict[str, torch.Tensor]]:
        """How many loops and pieces of work between them were entered; what the gradients of steps before are, if they
        count on, and what they are to other ranks."""
        transaction = self._transaction
        return self._place.entered, *(transaction.carried.give() if transaction.carries_on() else (b"", {}))

    # ---- what a repair does -----------------------------------------------------------------------------------

    def settle(self, passed: int) -> None:
        """All ranks know that so many pieces of work between loops are over."""
        self._between.settle(passed)

    def all_try(self, updates: int) -> None:
        """Nobody is replaced: all do this step again."""
        self._transaction.raised.all_try(updates)

    def let_go(self) -> None:
        """What this rank holds is about to be overwritten piece by piece: until it stands again it holds nothing.

        Its buffers come along with the model of another rank, and are its own all the same: they are kept aside, once,
        for a second attempt would find the other rank's.
        """
        self._transaction.step.happens(StepEvent.TORE)
        self._transaction.prover.took()
        if self._own_buffers is None:
            self._own_buffers = self._registered.local.buffers()

    def return_to(self, updates: int) -> None:
        """Stand where the agreed step begins, parameters and optimizers being there already."""
        transaction, local, begun = self._transaction, self._registered.local, self._transaction.begun
        if begun is not None and begun.number == updates:
            local.restore(begun.moment)
        elif begun is not None and transaction.updates < updates:
            if local.modules.moved(begun.moment.modules):
                raise PeerError("the step changes attributes of modules, and this rank has not seen it to its end")
            local.modules.put_back_attributes(begun.moment.modules)
            local.clear_gradients(begun.moment)
            transaction.carried.updated = transaction.carried.lacking = True
            if self._own_buffers is not None:
                local.put_back(self._own_buffers)
        self._own_buffers = None
        transaction.updates, transaction.variables.restored = updates, True
        transaction.step.happens(StepEvent.MENDED)

    def take_over(self, updates: int, occasion: Occasion, data: bytes) -> None:
        """Begin where the dead rank's record stands. Raises PeerError when it does not fit, UsageError when something
        is missing in it that nobody can know."""
        transaction, registered = self._transaction, self._registered
        opened, packed, whole = registered.local.adopt(data)
        self._loaders.adopt(opened)
        self._refusal.begin_anew()
        registered.calls.inherit(packed)
        habits = registered.calls.habits
        if (habits.moves_on and occasion is Occasion.FORWARD) or (habits.moves_between and not whole):
            raise UsageError(MISSED.format(where="behind its backward" if habits.moves_on else "between two steps"))
        self._own_buffers = None
        transaction.updates, transaction.variables.restored = updates, True
        transaction.carried.updated = True
        transaction.carried.lacking = not registered.local.carried_gradients()

    def carry(self, places: int, kind: bytes, gradients: dict[str, torch.Tensor]) -> None:
        """Go on with what the giver of this rank's state has `carried`. Raises PeerError if that is not this rank's."""
        self._place.giver = places
        self._transaction.carried.take(kind, gradients)
