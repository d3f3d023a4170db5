"""What this rank holds, as a repair asks for it and changes it: the session's side of heal.py and state/restore.py.

Invariants: a rank that holds half an update, or half of another rank's state, counts as holding nothing. It reports
`held` as -1 until its state is complete again. If this rank has begun the agreed step, its own moment of that step is
put back. If it missed the update, the update comes from another rank, and this rank keeps its own buffers.
It decides nothing about the repair.
"""

from __future__ import annotations

import torch

from taskd.errors import PeerError, UsageError
from taskd.state.local import Buffers, loop_of, losses_of
from taskd.state.record import Occasion
from taskd.state.replica import Replica
from taskd.worker.between import Between
from taskd.worker.heal import Repair
from taskd.worker.keeping import Keeping
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
    """The `Loop` of heal.py, for one session."""

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
        """The state that every replica holds."""
        return self._registered.replica

    @property
    def part(self) -> int:
        """The part of the model that this rank holds: see state/parts.py."""
        return self.replica.part

    @property
    def keeping(self) -> Keeping:
        """What this rank keeps of what only it has."""
        return self._registered.keeping

    @property
    def origin(self) -> int:
        """A digest of the parameters before the first step; -1: there was no step yet."""
        return self._registered.local.origin

    @property
    def ends(self) -> list[int]:
        """The update count at which each completed loop ended."""
        return self._place.ends

    @property
    def passed(self) -> int:
        """How many pieces of work between loops are over on all ranks, as far as this rank knows."""
        return self._between.passed

    def operations_ended(self) -> None:
        """Note that no operation of the step that was given up touches a tensor any more."""
        self._registered.doubts.look("sharded models", self.replica.fully_sharded.reset)

    def refusal(self, updates: int) -> str:
        """Return why going on after this number of updates would be wrong, or an empty text."""
        return self._refusal.of(updates)

    def held(self) -> int:
        """Return the number of updates that this rank's parameters and optimizers hold completely; -1: none."""
        torn = self._transaction.step.state is StepState.TORN
        return -1 if torn or self._repair.newcomer else self._transaction.updates

    def flaw(self) -> str:
        """Return why this rank does not hold all that its training needs, or an empty text."""
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

    def in_between(self) -> bool:
        """Whether the script does work between two loops."""
        return self._between.under_way

    def carried(self) -> tuple[int, bytes, dict[str, torch.Tensor]]:
        """Return how many loops and pieces of work were entered, then the kind and the values of the gradients of
        earlier steps, if they still accumulate."""
        transaction = self._transaction
        return self._place.entered, *(transaction.carried.give() if transaction.carries_on() else (b"", {}))

    # ---- what a repair does -----------------------------------------------------------------------------------

    def settle(self, passed: int) -> None:
        """Note that, as all ranks know, this number of pieces of work between loops is over."""
        self._between.settle(passed)

    def all_try(self, updates: int) -> None:
        """Note that no rank is replaced, and that all ranks do this step again, because one has raised in it."""
        self._transaction.raised.all_try(updates)
        self._registered.local.losses.forget()

    def let_go(self) -> None:
        """Prepare for another rank's state, which overwrites this rank's state piece by piece. Until that is complete,
        this rank holds nothing.

        The model of the other rank comes with its buffers, but this rank's buffers are its own. So they are kept aside,
        and only once, because a second attempt would find the other rank's buffers.
        """
        self._transaction.step.happens(StepEvent.TORE)
        self._transaction.prover.took()
        if self._own_buffers is None:
            self._own_buffers = self._registered.local.buffers()

    def return_to(self, updates: int) -> None:
        """Go to the beginning of the agreed step. Parameters and optimizers are there already."""
        transaction, local, begun = self._transaction, self._registered.local, self._transaction.begun
        local.losses.is_done_again(updates)
        transaction.raised.left = None  # if the script has caught an error in this step, it will do so again
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
        transaction.variables.leftovers.repaired = True
        transaction.step.happens(StepEvent.MENDED)

    def take_over(self, updates: int, occasion: Occasion, data: bytes, slots: list[bytes]) -> None:
        """Begin at the record of the dead rank, of which these are all `slots`. Raises PeerError if the record does not
        fit, UsageError if it lacks something that nobody can know."""
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
        transaction.variables.leftovers.repaired = True
        transaction.carried.updated = True
        transaction.carried.lacking = not registered.local.accumulates()
        local = registered.local
        local.losses.inherit(updates, [losses_of(data) for data in slots if loop_of(data) == local.loop])

    def carry(self, places: int, kind: bytes, gradients: dict[str, torch.Tensor]) -> None:
        """Take over what the giver of this rank's state has `carried`. Raises PeerError if it does not fit here."""
        self._place.giver = places
        self._transaction.carried.take(kind, gradients)
