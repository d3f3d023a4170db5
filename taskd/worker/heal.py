"""A training process' part in a repair: the training thread goes through the stages and reports what it has done.

Its orders wait in a queue (orders.py). Once the thread has left its step, it works through them: park, rebuild the
groups, bring the state to the agreed update, resume. Between repairs this module keeps what the next repair needs. It
writes this rank's local state where the rank's death cannot reach it. It sends digests of the state, which the manager
compares.

Failure modes: a newer epoch in any stage (the current work of the training thread ends with StepAbandoned, and the
queue goes on with the newer epoch); making the new groups blocks on a rank that has died (groups.py); a stage that
fails (the manager hears why, and climbs the ladder). Invariant: at most one stage is under way, on the training thread.
It does NOT receive orders (orders.py) and does not detect failures (failures.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from taskd import log
from taskd.core.effects import Park, Quit, Rebuild, Restore, Resume, Save, WorkerEffect
from taskd.core.events import Done
from taskd.core.messages import Covered, Order, Proof
from taskd.core.types import Cover, Stage
from taskd.core.words import WOULD_BE_WRONG, cut
from taskd.core.worker import WorkerState
from taskd.errors import Misfit, StepAbandoned, UsageError
from taskd.state.digests import Digests
from taskd.state.local import loop_of
from taskd.state.parts import WHOLE
from taskd.state.record import Occasion, Record
from taskd.state.shard_file import ShardFile
from taskd.worker.groups import Groups
from taskd.worker.keeping import Keeping
from taskd.worker.orders import Orders, leave_at_once
from taskd.worker.together import LaunchedTogether, Together

ELSEWHERE = "the script stands between two loops, or in the work between them"
_STAGE = {Park: Stage.PARKED, Save: Stage.SAVED, Rebuild: Stage.REBUILT, Restore: Stage.RESTORED}
APPEAL_SECONDS = 15.0
"""How long a rank that has raised an error waits for the manager's answer."""
_logger = log.get(__name__)


class Loop(Protocol):
    """The methods of the session that a repair needs."""

    @property
    def ends(self) -> list[int]: ...
    @property
    def replica(self) -> Any: ...
    @property
    def part(self) -> int: ...
    @property
    def origin(self) -> int: ...
    @property
    def passed(self) -> int: ...
    def settle(self, passed: int) -> None: ...
    @property
    def keeping(self) -> Keeping: ...
    def operations_ended(self) -> None: ...
    def refusal(self, updates: int) -> str: ...
    def held(self) -> int: ...
    def flaw(self) -> str: ...
    def in_between(self) -> bool: ...
    def all_try(self, updates: int) -> None: ...
    def let_go(self) -> None: ...
    def return_to(self, updates: int) -> None: ...
    def take_over(self, updates: int, occasion: Occasion, data: bytes, slots: list[bytes]) -> None: ...
    def carried(self) -> tuple[int, bytes, dict[str, Any]]: ...
    def carry(self, places: int, kind: bytes, gradients: dict[str, Any]) -> None: ...


class Repair:
    """The session's view of repairs. This class is for a process that is never repaired: its answers are neutral."""

    newcomer = False
    replaces = False
    """Whether this process came for one that had died. Unlike `newcomer`, this never changes."""
    loop_before = 0
    """On a newcomer: the loop in which its life before was; 0: in none, as far as is known."""
    heals = False
    """Whether there may ever be a repair."""
    records = False
    speaks = False
    """Whether this rank logs what all ranks would log alike."""
    together = Together()
    """The collectives of all ranks."""
    shards: ShardFile | None = None
    """The memory file for what only this rank has of a model."""
    keeps_always = False
    """Whether that is kept whatever it costs: see recover.keep_shards."""
    saving: Order | None = None
    """The order to write the last checkpoint, until it is answered."""
    never_retry: tuple[str, ...] = ()
    """Names of the errors that the script raises on purpose: see recover.never_retry."""
    losses_may_differ = False
    """Whether a step that is done again may have another loss: see recover.another_loss."""

    def ordered(self) -> bool:
        """Whether the current step is given up."""
        return False

    def appeal(self, updates: int, error: str) -> bool:
        """Report that the script's own error has left the step after `updates` updates, and wait for the answer.
        Return whether all ranks do this step again."""
        return False

    def record(self, occasion: Occasion, step: int, pieces: list[bytes]) -> None:
        """Write this rank's local state where its death cannot reach it."""

    def record_ledger(self, number: int, pieces: list[bytes]) -> None:
        """Write the next version of this rank's ledger to the same place."""

    def ledger(self) -> tuple[int, bytes] | None:
        """Return the ledger of the life before, on a newcomer."""
        return None

    def refuse(self, sentence: str, in_step: bool) -> None:
        """Report that going on would be wrong, and end this rank. Never returns. Raises StepAbandoned if all give up
        the step and this rank is `in_step`, before its update: it may then write the last checkpoint."""
        raise Misfit(sentence)

    def saved(self, trouble: str) -> None:
        """Report that the last checkpoint is written; or the trouble, if it is not."""

    def training_begins(self) -> None:
        """Note that the set-up is over: its results need not be recorded any longer."""

    def operations(self) -> int:
        """Return how many collectives this process has begun."""
        return 0

    def committed(self, updates: int) -> None:
        """Note that a step is done."""

    def tell_proof(self, digests: Digests, updates: int, every: int, first: int, end: int) -> None:
        """Send the digests of units `first` to `end` of the state after `updates` updates. `every`: the number of
        updates until all units have had their turn."""

    def tell_cover(self, cover: Cover, saves: bool, part: int) -> None:
        """Tell the agent what a death of this rank would lead to, whether this rank can write a last checkpoint, and
        which part of the model it holds."""

    def rehearsing(self) -> AbstractContextManager[None]:
        """Return a context in which operations complete on this rank alone."""
        return contextlib.nullcontext()

    def apart(self) -> AbstractContextManager[None]:
        """Like rehearsing(), for a rank that has already joined the others. Raises StepAbandoned if a repair begins."""
        return self.rehearsing()

    def run(self, loop: Loop) -> None:
        """Go through an ordered repair; returns when training goes on."""


class LaunchedRepair(Repair):
    """The real implementation, in a process that taskd's launcher started."""

    heals = True

    def __init__(
        self,
        orders: Orders,
        groups: Groups,
        control: Any,
        say: Callable[[Any], bool],
        record: Record,
        inherited: Record | None,
    ) -> None:
        """`control`: the control of the guard; `say`: sends a message to the agent; `inherited`: the record of the life
        before, on a newcomer."""
        self.orders = orders
        self.speaks = orders.core.rank == 0
        self.together = LaunchedTogether(orders.core.rank)
        self.newcomer = self.replaces = orders.core.state is WorkerState.SETUP
        self.records = True
        self.loop_before = max(map(loop_of, inherited.contents()), default=0) if inherited is not None else 0
        self._groups = groups
        self._control = control
        self._say = say
        self._record = record
        self._inherited = inherited
        self._healed = False

    # ---- between repairs --------------------------------------------------------------------------------------

    def ordered(self) -> bool:
        return self.orders.interrupted()

    def appeal(self, updates: int, error: str) -> bool:
        return self.orders.appeal(updates, error, APPEAL_SECONDS)

    def record(self, occasion: Occasion, step: int, pieces: list[bytes]) -> None:
        self._kept(lambda: self._record.write(occasion, step, pieces))

    def record_ledger(self, number: int, pieces: list[bytes]) -> None:
        if self.records:
            self._kept(lambda: self._record.write_ledger(number, pieces))

    def ledger(self) -> tuple[int, bytes] | None:
        return self._inherited.ledger() if self._inherited is not None else None

    def _kept(self, write: Callable[[], None]) -> None:
        try:
            write()
        except (OSError, UsageError) as error:
            self.records = False
            _logger.warning(
                "this rank's local state can no longer be kept, so its death would not be healed in place: %s", error
            )

    def refuse(self, sentence: str, in_step: bool) -> None:
        given_up = False
        try:
            here = threading.current_thread() is threading.main_thread() and not self.orders.lock.locked()
            if here:  # else the thread that waits here may be the one that has to hear the answer
                given_up = self.orders.appeal(self.orders.core.updates, WOULD_BE_WRONG + sentence, APPEAL_SECONDS)
        finally:  # nobody has answered, another repair has begun, or a handler of a signal raises
            if not (given_up and in_step):
                leave_at_once(Quit(1, cut(sentence)))
        raise StepAbandoned(sentence)

    def saved(self, trouble: str) -> None:
        if (order := self.saving) is not None:
            self.saving = None
            if trouble:
                _logger.warning("the last checkpoint cannot be written: %s", trouble)
            self._answer(order.epoch, Stage.SAVED, order.updates, ok=not trouble, reason=cut(trouble))

    def training_begins(self) -> None:
        from taskd.comm import guard

        self._control.stop_record()
        guard.training_begins()

    def operations(self) -> int:
        from taskd.comm import guard

        return guard.begun()

    def committed(self, updates: int) -> None:
        if self._healed:
            self._healed = False
            self._answer(self.orders.core.epoch, Stage.RUNNING, updates)

    def tell_proof(self, digests: Digests, updates: int, every: int, first: int, end: int) -> None:
        core, part = self.orders.core, max(digests.replica.part, WHOLE)
        names_them = core.rank == max(part - 1, 0)
        self._say(
            Proof(
                rank=core.rank,
                incarnation=core.incarnation,
                epoch=core.epoch,
                updates=updates,
                every=every,
                layout=digests.number,
                total=len(digests.units),
                harmless=digests.harmless,
                taken=digests.taken,
                first=first,
                digests=digests.of(first, end),
                names=digests.names(first, end) if names_them else "",
                missing=digests.missing,
                part=part,
            )
        )

    def tell_cover(self, cover: Cover, saves: bool, part: int) -> None:
        core = self.orders.core
        self._say(Covered(core.rank, core.incarnation, cover, saves, max(part, WHOLE)))

    def rehearsing(self) -> AbstractContextManager[None]:
        return self._groups.rehearsing()

    def apart(self) -> AbstractContextManager[None]:
        return self._groups.apart(self.orders.core.epoch)

    # ---- a repair ---------------------------------------------------------------------------------------------

    def run(self, loop: Loop) -> None:
        self.saved(ELSEWHERE)
        if self.newcomer:
            _parked(self.orders, self.orders.core.epoch, -1, loop)
        while True:
            effect = self.orders.next()
            try:
                if self._follow(effect, loop):
                    self._healed = self.saving is None
                    return
            except StepAbandoned:
                continue  # a newer epoch: its Park is in the queue, or soon will be
            except Misfit as error:
                self._failed(effect, error)
                leave_at_once(Quit(1, cut(str(error))))
            except Exception as error:
                # Any kind of error: the manager must hear that the stage failed, so that it climbs the ladder.
                self._failed(effect, error)

    def _follow(self, effect: WorkerEffect, loop: Loop) -> bool:
        """Carry out one effect. Return True when the script goes on: with training, or with the last checkpoint."""
        if isinstance(effect, Park):
            self._groups.end_operations()
            loop.operations_ended()
            held = loop.held()
            flaw = loop.flaw()
            if not flaw and held < 0 and not self.newcomer:  # a newcomer rightly holds nothing
                flaw = "its update is torn"
            _parked(self.orders, effect.epoch, -1 if flaw else held, loop, cut(flaw))
        elif isinstance(effect, Save):
            if self.orders.core.rank in effect.order.savers:
                self.saving = effect.order
                if not loop.in_between():
                    loop.return_to(effect.order.updates)
                    return True
                self.saved(ELSEWHERE)
                return False
            self._answer(effect.order.epoch, Stage.SAVED, loop.held())
        elif isinstance(effect, Rebuild):
            self._groups.rebuild(effect.order.epoch)
            self._answer(effect.order.epoch, Stage.REBUILT, loop.held())
        elif isinstance(effect, Restore):
            from taskd.state.restore import restore

            inherited = self._inherited if self.newcomer else None
            restore(effect.order, self.orders.core.rank, loop, inherited, self._groups.apart)
            self.newcomer = False
            self._answer(effect.order.epoch, Stage.RESTORED, effect.order.updates)
        elif isinstance(effect, Resume):
            self._control.resume(effect.epoch)
            self._answer(effect.epoch, Stage.RUNNING, effect.updates)
            return True
        return False

    def _answer(self, epoch: int, stage: Stage, updates: int, *, ok: bool = True, reason: str = "") -> None:
        self.orders.take(Done(epoch, stage, updates, ok, reason))

    def _failed(self, effect: WorkerEffect, error: Exception) -> None:
        _logger.warning("a stage of the repair failed: %s", error)
        epoch = effect.order.epoch if isinstance(effect, (Save, Rebuild, Restore)) else self.orders.core.epoch
        stage = _STAGE.get(type(effect), Stage.RUNNING)
        would_be_wrong = isinstance(error, UsageError) and not isinstance(error, Misfit)
        reason = (WOULD_BE_WRONG if would_be_wrong else "") + (str(error) or repr(error))
        self._answer(epoch, stage, -1, ok=False, reason=cut(reason))


def _parked(orders: Orders, epoch: int, updates: int, loop: Loop, flaw: str = "") -> None:
    orders.take(Done(epoch, Stage.PARKED, updates, not flaw, flaw, max(loop.part, WHOLE), loop.keeping.kept))
