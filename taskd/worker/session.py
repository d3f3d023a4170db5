"""What a script calls to make its steps transactions: `for step in session.steps(loader): with step: ...`.

It only knows the loop. What a step is stands in transaction.py, what was registered in registered.py, a newcomer's way
in newcomer.py, what lies between two loops in between.py, and what a repair asks of all this in standing.py.

Failure modes: a fault between two steps or after the last one (the loop waits at its own boundaries); a script that
leaves its loop early, asks for a step and does not use it, or has several loops. What is in the body of the loop and
outside of `with step:` is not done again, so collectives belong inside of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

from taskd.core.types import Phase
from taskd.errors import StepAbandoned, UsageError
from taskd.state.ledger import Ledger
from taskd.state.replica import Replica
from taskd.worker import compiling, hooks
from taskd.worker.between import Between
from taskd.worker.feed import Feed
from taskd.worker.heal import Repair
from taskd.worker.listener import Listener
from taskd.worker.loaders import Loaders
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
Result = TypeVar("Result")


class Session:
    """One per training process. `taskd.session()` gives it."""

    def __init__(self, repair: Repair) -> None:
        self._repair = repair
        self._place = place = Place()
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
        self._passage = passage = Passage(known.replica, repair, patched, lambda s: refusal.writes(s))
        self._refusal = refusal = Refusal(transaction, ledger, repair, passage)
        self._between = Between(transaction, ledger, known.local, repair, passage, known.doubts, place)
        self._newcomer = Newcomer(known, transaction, repair, passage, place, refusal)
        self._standing = Standing(known, transaction, repair, self._between, loaders, place, refusal)
        patched.listener = Listener(known, transaction, self._between, passage)

    @property
    def updates(self) -> int:
        """How many steps are done: the number of the next one."""
        return self._transaction.updates

    @property
    def ends(self) -> list[int]:
        """Where each loop that is over has ended, in updates."""
        return self._place.ends

    @property
    def replica(self) -> Replica:
        """What every rank holds alike."""
        return self._registered.replica

    @property
    def was_tried_again(self) -> bool:
        """Whether the error that has left a step had left it before."""
        return self._transaction.raised.came_again

    @property
    def proof_ns(self) -> tuple[int, int]:
        """What the proofs that this rank holds the same as others have taken of its steps: slices, and the last one of
        the whole state."""
        return self._transaction.prover.spent_ns, self._transaction.prover.whole_ns

    def register(
        self,
        *,
        model: Any = None,
        optimizer: Any = None,
        scheduler: Any = None,
        scaler: Any = None,
        local: dict[str, Any] | None = None,
        **replicated: Any,
    ) -> None:
        """Name what the training changes. Each of the first four is one object, a list or a dict of them.

        `replicated` objects have state_dict() and load_state_dict() and are the same on every rank; those in `local`
        (also tensors, dicts, lists and torch.Generators) are this rank's own.
        Raises UsageError.
        """
        if self._transaction.current is not None:
            raise UsageError("register() was called inside a step; register everything before the loop")
        self._registered.add(model, optimizer, scheduler, scaler, local or {}, replicated)

    def steps(self, loader: Iterable[Any], *, epochs: int = 1) -> Generator[Step, None, None]:
        """The steps of this loop, in order; one that was given up comes again. The body belongs inside `with step:`.

        Raises UsageError.
        """
        if not self.replica.models:
            raise UsageError("steps() was called before register(model=..., optimizer=...): nothing could be repaired")
        if self._transaction.current is not None:
            raise UsageError("a loop over steps() begins inside of `with step:`")
        feed = self._transaction.feed = Feed(loader, epochs, self._loaders)
        ordinal = self._enter_loop(loader)
        if not (yield from self._newcomer.comes_to(feed)):
            return
        start = feed.start = self.ends[ordinal - 2] if ordinal > 1 else 0
        self._repair.training_begins()
        with self._patched, contextlib.closing(feed):
            yield from self._train(feed, ordinal, start)
        self._transaction.variables.notes.loop_ends()
        if self.updates == self.ends[ordinal - 1]:
            hooks.mark_step(self.updates - 1, Phase.BETWEEN)
        if self._place.giver_is_ahead:
            self._passage.go_after()

    def _enter_loop(self, loader: Any) -> int:
        """A loop begins; its number, from 1."""
        place = self._place
        if len(place.ends) < place.loops and not self._repair.newcomer:
            place.ends.append(self.updates)  # the body has left the loop before
        compiling.look()
        place.loops += 1
        if place.loops == 2 and not place.in_epochs and self._repair.records:
            self._registered.warn([OLD_SHAPE])
            self._registered.tell_cover(OLD_SHAPE)
        self._registered.local.loop = place.loops
        self._registered.loop_begins()
        self._registered.agree()
        self._transaction.variables.notes.loop_begins(place.loops, loader)
        return place.loops

    def _train(self, feed: Feed, ordinal: int, start: int) -> Iterator[Step]:
        """The steps of a loop that began after `start` updates, until all ranks have ended it."""
        transaction, ends, end = self._transaction, self.ends, start + len(feed)
        while len(ends) < ordinal:
            owes = transaction.effects.owes(self.updates)
            if self.updates >= end and not owes:
                arrived = self._repair.together.all_arrived(transaction.heal) and len(ends) < ordinal
                if arrived and transaction.variables.loop_ends(end, transaction.heal):
                    ends.append(end)
            elif transaction.given_up():
                transaction.heal()
            elif owes:
                yield from self._newcomer.pay(feed)
            else:
                try:
                    step = transaction.hand_out(feed, start)
                except StepAbandoned:  # in a collective of the loader's
                    transaction.heal()
                    continue
                try:
                    yield step
                finally:
                    transaction.take_back()
                transaction.check_used()
                if self._place.loops != ordinal:
                    raise UsageError("another loop over steps() has begun in the body of this one")

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs, from 0. A newcomer comes by those that are over and runs none of their steps. All
        ranks meet at the end, so that one that dies in what it has to do last is replaced like any other."""
        place = self._place
        place.in_epochs = True
        for place.epoch in range(count):
            yield place.epoch
        place.epoch = 0
        if place.loops:
            self.between(lambda: None)

    def between(self, work: Callable[[], Result], then: Callable[[Result], Any] | None = None) -> Result:
        """Do what stands between two loops, on all ranks; gives its result.

        `work` may communicate. When a rank dies in it all do it again; once all have ended it no newcomer does. Its
        result is kept: numbers, text, tensors, and dicts and lists of them. `then` gets it and is done once, by each
        rank for itself. Raises UsageError.
        """
        if self._transaction.current is not None or self._transaction.is_behind_a_step:
            raise UsageError("between() was called in a loop over steps(): it stands between two loops, or behind them")
        if not self._place.loops:
            return self._between.before_loops(work, then)  # type: ignore[no-any-return]
        return self._between.run(work, then)  # type: ignore[no-any-return]

    def leaves(self) -> None:
        """The script takes its process group down, or is through."""
        self._refusal.script_leaves()

    def failed(self, sentence: str) -> None:
        """The script has failed on this rank by itself."""
        self._refusal.script_failed(sentence)
