"""The session: a script calls it to make its steps transactions: `for step in session.steps(loader): with step: ...`.

This module only knows the loop. transaction.py defines the step, registered.py holds the registered objects, and
newcomer.py holds what a newcomer does first. between.py handles the work between two loops. standing.py answers what a
repair asks. loop_ends.py knows whether all ranks end a loop together.

Failure modes: a fault between two steps or after the last one (the loop waits at its own boundaries); a script that
leaves its loop early, asks for a step and does not use it, or has several loops. Code in the loop's body but outside of
`with step:` is not done again, so collectives belong inside `with step:`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

from taskd.core.types import Phase
from taskd.errors import StepAbandoned, UsageError
from taskd.state.ledger import Ledger
from taskd.state.numbering import Numbering
from taskd.state.replica import Replica
from taskd.state.unaccounted import reached
from taskd.worker import compiling, hooks, pausing
from taskd.worker.between import Between
from taskd.worker.feed import Feed, LoaderEnded
from taskd.worker.heal import Repair
from taskd.worker.last_checkpoint import LastCheckpoint
from taskd.worker.listener import Listener
from taskd.worker.loaders import Loaders
from taskd.worker.loop_ends import LoopEnds
from taskd.worker.newcomer import Newcomer
from taskd.worker.passage import Passage
from taskd.worker.patches import Patches
from taskd.worker.place import Place
from taskd.worker.refusal import Refusal
from taskd.worker.registered import Registered
from taskd.worker.standing import Standing
from taskd.worker.step import Step
from taskd.worker.step_state import StepMachine
from taskd.worker.transaction import Transaction

OLD_SHAPE = (
    "there are several loops and no session.epochs(): a rank that is replaced runs once more through what stands "
    "between those that are over, and if it would write there, all start over; see session.between()"
)
LEFT_EARLY = (
    "the script leaves its loop behind step {number}, which is given up and would be done again: what is counted "
    "behind `with step:` must not say which step is the last one; let step.number say it"
)
Result = TypeVar("Result")


class Session:
    """The session of this training process; there is one per process. `taskd.session()` returns it."""

    def __init__(self, repair: Repair) -> None:
        self._repair = repair
        pausing.session_begins()
        self._place = place = Place()
        self._numbering = Numbering()
        self._step = StepMachine()
        ledger, loaders = Ledger(repair.record_ledger), Loaders(repair.records)
        if (found := repair.ledger()) is not None:
            ledger.adopt(found)
        self._loaders = loaders
        self._registered = known = Registered(repair, self._step)
        self._transaction = transaction = Transaction(
            self._step, known, repair, ledger, loaders, lambda: repair.run(self._standing), lambda s: refusal.refuse(s)
        )
        self._patched = patched = Patches(loaders)
        self._last_checkpoint = LastCheckpoint(known, repair)
        self._passage = passage = Passage(known.replica, repair, patched, lambda s: refusal.writes(s))
        self._loop_ends = LoopEnds(place, known, transaction, repair)
        self._refusal = refusal = Refusal(transaction, ledger, repair, passage)
        self._between = Between(transaction, ledger, known.local, repair, passage, known.doubts, place)
        self._newcomer = Newcomer(known, transaction, repair, passage, place, refusal)
        self._standing = Standing(known, transaction, repair, self._between, loaders, place, refusal)
        patched.listener = Listener(known, transaction, self._between, passage, refusal.losses_differ)

    @property
    def updates(self) -> int:
        """The number of completed steps, which is also the number of the next step."""
        return self._transaction.updates

    @property
    def ends(self) -> list[int]:
        """The update count at which each completed loop ended."""
        return self._place.ends

    @property
    def replica(self) -> Replica:
        """The state that is the same on every rank."""
        return self._registered.replica

    @property
    def was_tried_again(self) -> bool:
        """Whether the error that left a step had already left the same step once before."""
        return self._transaction.raised.came_again

    @property
    def proof_ns(self) -> tuple[int, int]:
        """The time that the proofs of equal state took in this rank's steps: for slices, and for the last proof of the
        whole state."""
        return self._transaction.prover.spent_ns, self._transaction.prover.whole_ns

    def register(
        self,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        local: dict[str, Any] | None = None,
        last_checkpoint: Callable[[int], Any] | None = None,
        **replicated: Any,
    ) -> None:
        """Register the objects that the training changes. Each of the first four is one object, or a list or dict.

        `last_checkpoint` writes a checkpoint, and gets the number of updates. It is called before all ranks start over,
        or the job ends for good: on one rank that holds the state after that update, so it must not communicate.

        `replicated` objects have state_dict() and load_state_dict() and are the same on every rank. Those that are
        optimizers, schedulers, scalers or trained models are treated like the first four. Objects in `local` (also
        tensors, dicts, lists and torch.Generators) belong to this rank alone.
        Raises UsageError.
        """
        if self._transaction.current is not None:
            raise UsageError("register() was called inside a step; register everything before the loop")
        self._registered.add(model, optimizer, scheduler, scaler, local or {}, replicated)
        if last_checkpoint is not None:
            if not callable(last_checkpoint):
                raise UsageError(f"last_checkpoint is a {type(last_checkpoint).__name__}, and no function")
            self._registered.save = last_checkpoint

    def steps(self, loader: Iterable[Any], *, epochs: int = 1) -> Generator[Step, None, None]:
        """Return the steps of this loop, in order. A step that was given up is yielded again. The body belongs inside
        `with step:`.

        Raises UsageError.
        """
        itself = list[weakref.ref[Any]]()
        found = self._steps(loader, epochs, itself)
        itself.append(weakref.ref(found))
        return found

    def _steps(self, loader: Iterable[Any], epochs: int, itself: list[weakref.ref[Any]]) -> Generator[Step, None, None]:
        """Yield the steps of a loop. `itself`: this generator."""
        if not self.replica.models:
            raise UsageError(
                "steps() comes after register(model=..., optimizer=...): no model is registered, so nothing could be "
                "repaired; `local` is for what a rank has besides the model that all ranks train"
            )
        if self._transaction.current is not None:
            raise UsageError("a loop over steps() begins inside of `with step:`")
        feed = self._transaction.feed = Feed(loader, epochs, self._loaders, self._numbering)
        self._numbering.loop_begins(itself[0])
        ordinal = self._enter_loop(feed)
        if not (yield from self._newcomer.comes_to(feed)):
            return
        start = feed.numbering.start = self.ends[ordinal - 2] if ordinal > 1 else 0
        self._repair.training_begins()
        with self._patched, contextlib.closing(feed):
            yield from self._train(feed, ordinal, start)
        self._transaction.variables.passes(self.updates)
        self._transaction.variables.notes.loop_ends()
        if self.updates == self.ends[ordinal - 1]:
            hooks.mark_step(self.updates - 1, Phase.BETWEEN)
        if self._place.giver_is_ahead:
            self._passage.go_after()

    def _enter_loop(self, feed: Feed) -> int:
        """Begin a loop and return its number, counted from 1."""
        place = self._place
        if len(place.ends) < place.loops and not self._repair.newcomer:
            place.ends.append(self.updates)  # the body left the previous loop early
        compiling.look()
        self._between.before_loops.are_over()
        place.loops += 1
        if place.loops == 2 and not place.in_epochs and self._repair.records:
            self._registered.warn([OLD_SHAPE])
            self._registered.tell_cover(OLD_SHAPE)
        self._registered.local.loop = place.loops
        self._registered.local.losses.forget()  # a step that was left with its loop: its number comes again
        self._transaction.raised.left = None
        self._registered.loop_begins()
        self._registered.agree()
        self._transaction.variables.notes.loop_begins(place.loops, feed.loader)
        self._loop_ends.loop_begins(feed.extent.length)
        return place.loops

    def _train(self, feed: Feed, ordinal: int, start: int) -> Iterator[Step]:
        """Yield the steps of a loop that began after `start` updates, until all ranks have ended the loop."""
        transaction, ends = self._transaction, self.ends
        while len(ends) < ordinal:
            over = feed.extent.over(self.updates - start)
            if self._repair.saving is not None:
                self._last_checkpoint.write(transaction, at_end=over is not None)
                continue
            owes = transaction.effects.owes(self.updates)
            if over is not None and not owes:
                end = start + over
                if self._loop_ends.may_part or self._loop_ends.all_at(end, over):
                    ends.append(end)
            elif transaction.given_up():
                transaction.heal()
            elif owes:
                yield from self._newcomer.pay(feed)
            elif pausing.before(self.updates, self._repair.ordered):
                hooks.mark_phase(Phase.BETWEEN)  # it has stood for an operator; a repair may have begun meanwhile
            else:
                try:
                    step = transaction.hand_out(feed, start)
                except StepAbandoned:  # raised in a collective of the loader
                    transaction.heal()
                    continue
                except LoaderEnded:
                    continue
                try:
                    yield step
                except GeneratorExit:
                    if step.given_up and step.number == self.updates and transaction.is_behind_a_step:
                        self._refusal.refuse(LEFT_EARLY.format(number=step.number))
                    raise
                finally:
                    transaction.take_back()
                transaction.check_used()
                if self._place.loops != ordinal:
                    raise UsageError("another loop over steps() has begun in the body of this one")

    def epochs(self, count: int, first: int = 0) -> Iterator[int]:
        """Yield the numbers of the epochs, from `first` to `count` - 1. A newcomer takes both from its predecessor. It
        passes the epochs that are over and runs none of their steps. All ranks meet at the end, so a rank that dies in
        its last work is still replaced."""
        place = self._place
        place.in_epochs = True
        for place.epoch, epoch in enumerate(self._between.before_loops.epochs(first, count)):
            yield epoch
        place.epoch = 0
        if place.loops and not self._loop_ends.may_part:
            self.between(lambda: None)

    def between(self, work: Callable[[], Result], then: Callable[[Result], Any] | None = None) -> Result:
        """Do the work between two loops on all ranks, and return its result. Before the first loop, a newcomer does the
        work, too, but gets the result of its predecessor.

        `work` may communicate. If a rank dies during `work`, all ranks do it again. Once all ranks have ended it, no
        newcomer does it again. The result is kept: numbers, text, tensors, and dicts and lists of them. `then` gets the
        result; each rank calls it once, for itself. Raises UsageError.
        """
        if self._transaction.current is not None or self._transaction.is_behind_a_step:
            raise UsageError("between() was called in a loop over steps(): it stands between two loops, or behind them")
        self._loop_ends.check_meeting()
        if not self._place.loops:
            return self._between.before_loops.do(work, then)  # type: ignore[no-any-return]
        result: Result = self._between.run(work, then)
        self._registered.census.accept(reached([result]))
        return result

    def leaves(self) -> None:
        """Note that the script destroys its process group, or has ended."""
        self._refusal.script_leaves()

    def failed(self, sentence: str) -> None:
        """Note that the script has failed on this rank because of its own error."""
        self._refusal.script_failed(sentence)
