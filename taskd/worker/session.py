"""The step as a transaction: `for step in session.steps(loader): with step: ...`.

A session knows what a step consumes and what it changes, so that a step can be given up anywhere and done again with
the same result to the last bit. In a healthy step it sends nothing and asks nobody: it notes the random generators and
buffers, and leaves a copy in this rank's record. When a repair is ordered the step is left by StepAbandoned, the `with`
catches it, and the training thread itself goes through the repair (heal.py); then the loop hands out the agreed step.

Failure modes: a fault before, in and after the optimizer (updates.py decides what this rank then holds); a fault while
a repair is under way (the repair starts over); a fault between two steps or after the last one (the loop waits at its
own boundaries). What is outside of `with step:` is not done again, so collectives belong inside of it.

Invariants: `updates` counts steps whose update this rank holds, whole; a step that was given up has reached no
optimizer, no file, no log; nothing of a rehearsal is kept.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, TypeVar

import torch

from taskd import log
from taskd.core.types import Phase
from taskd.errors import PeerError, StepAbandoned, UsageError
from taskd.state import rng
from taskd.state.coverage import Coverage
from taskd.state.ledger import NEVER, Ledger
from taskd.state.local import Buffers, Captured, LocalState
from taskd.state.manifest import contents
from taskd.state.modules import Noted
from taskd.state.record import Occasion
from taskd.state.replica import Replica, follows
from taskd.state.strange import STARTS_OVER, Doubts, among, real_optimizer
from taskd.worker import compiling, hooks
from taskd.worker.between import Between
from taskd.worker.carried import Carried
from taskd.worker.effects import Effects
from taskd.worker.feed import Feed
from taskd.worker.heal import Repair
from taskd.worker.loaders import Loaders
from taskd.worker.naming import named, told
from taskd.worker.passage import Passage
from taskd.worker.patches import Patches
from taskd.worker.prover import Prover
from taskd.worker.step import Step
from taskd.worker.updates import TORN, WHOLE, Updates

BETWEEN = "ranks communicate between two steps: if one dies there, all start over; do it inside of `with step:`"
LOADER_TALKS = "the loader communicates when it is opened or asked for a batch"
UNREHEARSED = "a newcomer cannot rehearse the step"
RUN_AGAIN = "a newcomer runs again through what its life before has behind it"
PUT_IT = "put it into session.between(work, then) as `then`"
OLD_SHAPE = (
    "there are several loops and no session.epochs(): a rank that is replaced runs once more through what stands "
    "between those that are over, and if it would write there, all start over; see session.between()"
)
_logger = log.get(__name__)
Result = TypeVar("Result")


class Session:
    """One per training process. `taskd.session()` gives it."""

    def __init__(self, repair: Repair) -> None:
        self.updates = 0
        """How many steps are done: the number of the next one."""
        self.ends: list[int] = []
        """Where each loop that is over has ended, in updates: on every rank, or on this one if its body left it."""
        self._repair = repair
        self._replica = Replica()
        self._local = LocalState(self._replica)
        self._doubts = Doubts(self._warn)
        self._updates = Updates(self._replica, self.given_up, repair.operations, self._doubts)
        self._carried = Carried(self._replica, self._local)
        self._coverage = Coverage(self._replica, self._local.objects)
        self._checked = False  # a step of this life was seen to its end, and what it changed was looked at
        self._loops = 0  # entered so far
        self._current: Step | None = None
        self._left: Step | None = None  # the one that an error of the script's has left
        self._moment: Captured | None = None  # as the step under way, or the last one, found things
        self._moment_of = -1
        self._forward: Noted | None = None  # modules, when the last step's backward began
        self._last_number = -1
        self._loaders = Loaders(repair.records)
        self._feed: Feed | None = None
        self._torn = False
        self._own_buffers: Buffers | None = None  # set aside while another rank's model comes in
        self._patched = Patches(self, self._loaders)
        self._passage = Passage(self._replica, repair, self._patched, self._writes)
        self._prover = Prover(self._replica, repair)
        self._refusal = ""
        self._in_epochs = False
        self._ledger = Ledger(repair.record_ledger)
        if (found := repair.ledger()) is not None:
            self._ledger.adopt(found)
        self._effects = Effects(self._ledger, repair.operations)
        self._between = Between(self, self._ledger, self._local, repair, self._passage, self._doubts)
        self._epoch = 0
        self._giver_place = 0  # how many loops, and pieces of work between them, the giver of this rank's state entered

    # ---- registration -----------------------------------------------------------------------------------------

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
        (also tensors, dicts, lists and torch.Generators) are this rank's own, and change before the step's backward.
        Raises UsageError.
        """
        if self._current is not None:
            raise UsageError("register() was called inside a step; register everything before the loop")
        for name, item in named("model", model, torch.nn.Module):
            if follows(item):
                replicated[name] = item
            else:
                self._add(self._replica.models, name, item)
        for name, item in named("optimizer", optimizer, torch.optim.Optimizer):
            self._doubts.look(f"{name}, a {type(item).__name__}", self._add_optimizer, name, item)
        for label, group, method in (("scheduler", scheduler, "step"), ("scaler", scaler, "update")):
            for name, item in named(label, group, object):
                self._doubts.look(f"{name}, a {type(item).__name__}", self._add_other, name, item, method)
        for name, item in replicated.items():
            self._doubts.look(f"{name}, a {type(item).__name__}", self._add_other, name, item)
        for name, item in (local or {}).items():
            self._add(self._local.objects, name, item)
        self._updates.unseen |= bool(replicated or local)

    def _add_optimizer(self, name: str, given: torch.optim.Optimizer) -> None:
        item = real_optimizer(given)
        self._updates.follow_optimizer(name, item)
        self._add(self._replica.optimizers, name, item)

    def _add_other(self, name: str, item: Any, method: str = "") -> None:
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise UsageError(
                f"{name} is a {type(item).__name__} without state_dict() and load_state_dict(): it cannot be kept"
            )
        self._add(self._replica.others, name, item)
        if method:
            self._updates.follow_call(name, item, method)

    @staticmethod
    def _add(table: dict[str, Any], name: str, item: Any) -> None:
        if table.get(name, item) is not item:
            raise UsageError(f"{name} is registered already; give the second one another name")
        table[name] = item

    # ---- the loop ---------------------------------------------------------------------------------------------

    def steps(self, loader: Iterable[Any], *, epochs: int = 1) -> Generator[Step, None, None]:
        """The steps of this loop, in order; one that was given up comes again. The body belongs inside `with step:`."""
        if not self._replica.models:
            raise UsageError("steps() was called before register(model=..., optimizer=...): nothing could be repaired")
        feed = Feed(loader, epochs, self._loaders)
        if len(self.ends) < self._loops and not self._repair.newcomer:
            self.ends.append(self.updates)  # the body has left the loop before
        compiling.look()
        self._loops += 1
        if self._loops == 2 and not self._in_epochs and self._repair.records:
            self._warn([OLD_SHAPE])
        ordinal = self._local.loop = self._loops
        self._feed = feed
        self._doubts.look("the registered objects", self._look_round)
        if self._repair.newcomer:
            if self._doubts.sentence:
                self._refuse(self._doubts.sentence)
            self._passage.begin()
            if not self._epoch or ordinal >= self._repair.loop_before:
                yield from self._rehearse(feed)  # a loop of a later epoch was rehearsed in the first one
            if ordinal < self._repair.loop_before:
                return
        if self._passage.under_way:
            self._passage.end()
        if self._repair.newcomer:
            self._heal()
            self._coverage.rebase()
        start = feed.start = self.ends[ordinal - 2] if ordinal > 1 else 0
        end = start + len(feed)
        self._repair.training_begins()
        with self._patched, contextlib.closing(feed):
            while len(self.ends) < ordinal:
                if self.updates >= end and not self._effects.owes(self.updates):
                    if self._repair.all_arrived(self._heal) and len(self.ends) < ordinal:
                        self.ends.append(end)
                elif self.given_up():
                    self._heal()
                elif self._effects.owes(self.updates):
                    yield from self._make_up(feed)
                else:
                    try:
                        step = self._next(feed, self.updates, start)
                    except StepAbandoned:  # in a collective of the loader's
                        self._heal()
                        continue
                    try:
                        yield step
                    finally:
                        self._updates.in_body = False
                    self._check_used()
        if self.updates == self.ends[ordinal - 1]:
            hooks.mark_step(self.updates - 1, Phase.BETWEEN)
        if self._giver_is_ahead():
            self._passage.go_after()

    def _look_round(self) -> None:
        """What there is when a loop begins."""
        if sentence := among(self._replica):
            self._doubts.begin(sentence)
            return
        self._updates.loop_begins()
        unfit = [f"{sentence}: {STARTS_OVER}" for sentence in self._local.modules.look(self._replica.models)]
        self._coverage.flaws += unfit
        if self._repair.records:
            self._warn([*unfit, *self._coverage.look()])

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs, from 0. A newcomer comes by those that are over and runs none of their steps. All
        ranks meet at the end, so that one that dies in what it has to do last is replaced like any other."""
        self._in_epochs = True
        for self._epoch in range(count):
            yield self._epoch
        self._epoch = 0
        if self._loops:
            self.between(lambda: None)

    def between(self, work: Callable[[], Result], then: Callable[[Result], Any] | None = None) -> Result:
        """Do what stands between two loops, on all ranks; gives its result.

        `work` may communicate. When a rank dies in it all do it again; once all have ended it no newcomer does. Its
        result is kept: numbers, text, tensors, and dicts and lists of them. `then` gets it and is done once, by each
        rank for itself. Raises UsageError.
        """
        if self._current is not None or self._updates.in_body:
            raise UsageError("between() was called in a loop over steps(): it stands between two loops, or behind them")
        if not self._loops:
            return self._between.before_loops(work, then)  # type: ignore[no-any-return]
        return self._between.run(work, then, self._giver_is_ahead)  # type: ignore[no-any-return]

    @property
    def _place(self) -> int:
        return self._loops + self._between.entered

    def _giver_is_ahead(self) -> bool:
        """A newcomer is still to come by what the giver of its state has done."""
        return self._place < self._giver_place

    def _next(self, feed: Feed, number: int, start: int) -> Step:
        begun = self._repair.operations()
        batch = feed.batch(number - start)
        if self._repair.operations() != begun:
            self._warn(self._coverage.outside([LOADER_TALKS]))
        step = Step(self, number, batch, again=number == self._last_number)
        self._last_number = number
        self._handed = step
        return step

    def _check_used(self) -> None:
        if not self._handed.used:
            raise UsageError("a step was not used: put the body of the loop inside `with step:`")

    def _rehearse(self, feed: Feed) -> Iterator[Step]:
        """A newcomer's first step: the body runs on some batch and sends nothing, so that DDP learns its layout.

        If its life before was in a later loop, all that comes before that one is a rehearsal (passage.py).
        """
        static = any(getattr(model, "static_graph", False) for model in self._replica.parallel())
        for _ in range(2 if static else 1):  # of a static graph DDP learns in the second one
            step = Step(self, 0, feed.sample(), rehearsal=True)
            self._handed = step
            yield step
            self._check_used()
        for parameter in (parameter for model in self._replica.models.values() for parameter in model.parameters()):
            parameter.grad = None

    def _make_up(self, feed: Feed) -> Iterator[Step]:
        """A newcomer owes what the step before was to do when its update is agreed: that step is rehearsed for it."""
        moment = self._local.capture(self._carry_on())
        self._passage.go_after()
        step = self._handed = Step(self, self.updates - 1, feed.sample(), rehearsal=True)
        yield step
        self._check_used()
        self._passage.end()
        self._local.restore(moment)
        if sentence := self._effects.differ():
            self._refuse(sentence)
        self._effects.pay(self.updates)

    # ---- the transaction --------------------------------------------------------------------------------------

    def given_up(self) -> bool:
        """Whether the step under way is given up, or the next one will not begin."""
        return self._repair.ordered()

    def on_commit(self, step: Step, function: Callable[..., Any], values: tuple[Any, ...]) -> None:
        """See Step.on_commit."""
        if step is not self._current:
            raise UsageError("step.on_commit() was called outside of `with step:`")
        self._effects.add(function, values)

    def _enter(self, step: Step) -> None:
        if self._current is not None:
            raise UsageError("a step was entered inside of another one")
        self._effects.begin()
        self._current, self._left = step, None
        self._doubts.look("what a step begins with", self._begin, step)
        if not step.rehearsal:
            hooks.mark_step(step.number, Phase.BODY)

    def _begin(self, step: Step) -> None:
        """Note all that this step may change."""
        if self._updates.begin(step.rehearsal):
            self._warn([BETWEEN])
        if step.rehearsal:
            return
        self._warn(self._coverage.outside([*self._updates.outside(), *self._effects.outside()]))
        if self._local.origin < 0 and self._repair.records:
            self._local.origin = contents(self._replica)
        if self._moment_of != step.number or not step.again:
            before, self._moment = self._moment, self._local.capture(self._carry_on())
            self._updates.unseen |= before is not None and not before.modules.alike(self._moment.modules)
            self._updates.late |= self._forward is not None and not self._forward.alike(self._moment.modules)
            self._moment_of = step.number
            assert self._feed is not None
            self._write(Occasion.START, self._moment, self._feed.before)
        elif self._moment is not None:
            rng.restore(self._moment.generators)  # whatever the loop's body has drawn before it came to this step again

    def _carry_on(self) -> bool:
        """Whether gradients of steps before count on: the last step made some and no optimizer used them."""
        return self.updates > 0 and not self._carried.updated

    def _write(self, occasion: Occasion, moment: Captured, generators: bytes) -> None:
        if self._repair.records:
            late = self._updates.late and occasion is Occasion.FORWARD
            pieces = self._local.pack(moment, generators, self._loaders.pack(), self._updates.habits(), late)
            self._repair.record(occasion, self._moment_of, pieces)

    def saves(self) -> bool:
        """Whether something is to be saved; nothing in a rehearsal. Raises StepAbandoned in a step that is given up."""
        if self._passage.under_way:
            return False
        if self._current is not None:
            if self.given_up():
                raise StepAbandoned("torch.save() belongs to a step that is given up")
            self._updates.may_end_here()
            self._warn(self._effects.saves())
        return True

    def forward_ended(self) -> None:
        """Called before any gradient leaves this rank."""
        step = self._current
        self._updates.forward_ended()
        self._doubts.look("models that reduce gradients", self._carried.forward_ended)
        if step is None or step.rehearsal or self.given_up():
            return
        self._effects.forward_ended(step.number)
        if self._repair.records:
            self._doubts.look("what a forward has left", self._record_forward)

    def _record_forward(self) -> None:
        moment = self._local.capture(False)
        self._forward = moment.modules
        self._write(Occasion.FORWARD, moment, moment.generators)

    def _exit(self, step: Step, error: BaseException | None) -> bool:
        self._current = None
        if step.rehearsal:
            self._updates.give_up(False)
            if isinstance(error, Exception):
                self._refuse(f"{UNREHEARSED}: {told(error)}")
            return error is None or isinstance(error, StepAbandoned)
        given_up = self.given_up() or isinstance(error, StepAbandoned)
        if error is not None and not (given_up and isinstance(error, (Exception, StepAbandoned))):
            self._left = step
            return False  # the user's own error, or an interrupt: neither is ours to swallow
        if not given_up:
            self._warn(self._effects.late(step.number))
            self._carried.updated = bool(self._doubts.look("what a step has changed", self._updates.commit))
            self._commit(step)
            self._doubts.look("what a step has left", self._prover.committed, self.updates)
            self._updates.in_body = True
            return True
        if self._doubts.sentence:
            self._heal()
            return True
        assert self._moment is not None
        to_its_end = error is None
        held = self._updates.give_up(to_its_end, self._local.modules.moved(self._moment.modules))
        self._torn = held == TORN
        if held == WHOLE:
            self._carried.updated = True
            self._local.clear_gradients(self._moment)
            if not to_its_end:
                self._local.modules.put_back_attributes(self._moment.modules)
            self._commit(step)
        self._heal()
        self._effects.pay(self.updates)  # if it was another rank that brought the update
        self._updates.in_body = True
        return True

    def _commit(self, step: Step) -> None:
        self.updates = step.number + 1
        self._carried.committed()
        self._repair.committed(self.updates)
        hooks.mark_step(step.number, Phase.BETWEEN)
        self._effects.pay(self.updates)
        if not self._checked:
            self._checked = True
            self._warn(self._doubts.look("what a step has changed", self._coverage.check) or [])
            self._warn([*filter(None, [self._loaders.flaw()])])

    def _warn(self, sentences: list[str]) -> None:
        for sentence in sentences:
            _logger.log(logging.WARNING if self._repair.speaks else logging.INFO, "%s", sentence)

    def data_is_asked_for(self, parameter: torch.Tensor) -> None:
        """Somebody may write into it."""
        step = self._current
        if self._between.under_way:
            self._between.moving.touched(parameter)
        elif step is not None and not step.rehearsal and not self._updates.stepping:
            self._doubts.look("a parameter whose data is asked for", self._updates.moving.touched, parameter)

    def optimizer_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """Any optimizer, registered or not."""
        if self._between.under_way:
            self._between.refuse_optimizer()
        if self._current is None or self._updates.stepping or not self._repair.records:
            return
        if sentence := self._doubts.look("an optimizer that steps", self._coverage.steps, optimizer):
            self._warn([sentence])

    # ---- a repair ---------------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Go through the repair that was ordered, outside of any step."""
        self._heal()
        hooks.mark_phase(Phase.BETWEEN)

    def carries_on(self) -> bool:
        """Whether gradients of steps before count on."""
        return self._carry_on()

    def pack(self, moment: Captured) -> list[bytes]:
        """A moment between two loops, as it goes into the ledger."""
        return self._local.pack(moment, moment.generators, b"", self._updates.habits(), False)

    @property
    def passed(self) -> int:
        """How many pieces of work between loops are over on all ranks, as far as this one knows."""
        return self._between.passed

    def settle(self, passed: int) -> None:
        """And as far as all know."""
        self._between.settle(passed)

    def refusal(self, updates: int) -> str:
        """Why going on after so many updates would be wrong, or nothing."""
        if not self._refusal and self._repair.newcomer and NEVER < self._ledger.failed_at < updates:
            return self._ledger.failure
        return self._refusal

    def failed(self, sentence: str) -> None:
        """The script has failed on this rank by itself. Whoever replaces it must not go on behind that."""
        if self._repair.newcomer and self._passage.under_way:
            self._refuse(f"{RUN_AGAIN}, and failed there: {sentence}")
        step = self._current or self._left
        at = step.number if step is not None else self.updates - 1
        if at < 0 or self._repair.newcomer:
            return
        self._ledger.failed_at = at
        where = "in" if step is not None else "after"
        self._ledger.failure = f"its script failed {where} step {at}, which the others have done: {sentence}"
        self._ledger.save()

    def _writes(self, sentence: str) -> None:
        if not self._refusal:
            self._refuse(f"{RUN_AGAIN}, and {sentence}: {PUT_IT}")

    def _refuse(self, sentence: str) -> None:
        """Going on would be wrong: all start over. Never returns."""
        _logger.warning("%s", sentence)
        self._refusal = sentence
        if self._repair.newcomer:
            self._passage.end()
            self._heal()
        self._ledger.failed_at, self._ledger.failure = self.updates - 1, sentence
        self._ledger.save()
        self._repair.refuse(sentence)

    def _heal(self) -> None:
        hooks.mark_phase(Phase.PARKED)
        self._repair.run(self)
        self._prover.healed()
        self._updates.repaired()
        self._torn = False

    @property
    def replica(self) -> Replica:
        """What every replica holds: for the repair."""
        return self._replica

    @property
    def origin(self) -> int:
        """What the parameters were before the first step, as a number; -1: there was none yet."""
        return self._local.origin

    @property
    def proof_ns(self) -> tuple[int, int]:
        """What the proofs that this rank holds the same as others have taken of its steps: slices, and the last one of
        the whole state."""
        return self._prover.spent_ns, self._prover.whole_ns

    def held(self) -> int:
        """The updates that this rank's parameters and optimizers hold, whole; -1: none."""
        return -1 if self._torn or self._repair.newcomer else self.updates

    def flaw(self) -> str:
        """Why what this rank holds is not all that its training needs, or nothing."""
        if self._repair.newcomer:
            return ""
        return self._doubts.look("what this rank holds", self._flaw) or self._doubts.sentence

    def _flaw(self) -> str:
        self._warn(self._coverage.outside([*self._updates.outside(), *self._effects.outside()]))
        if self._checked:
            self._warn(self._coverage.check())
        if self._torn and self._updates.torn_by:
            return self._updates.torn_by
        if self._coverage.flaws:
            return self._coverage.flaws[0]
        if flaw := self._between.flaw() or self._loaders.flaw():
            return flaw
        doing_again = self._feed is not None and self._moment_of == self.updates
        return self._feed.spoilt() if doing_again and self._feed else ""

    def let_go(self) -> None:
        """What this rank holds is about to be overwritten piece by piece: until it stands again it holds nothing.

        Its buffers come along with the model of another rank, and are its own all the same: they are kept aside, once,
        for a second attempt would find the other rank's.
        """
        self._torn = True
        self._prover.took()
        if self._own_buffers is None:
            self._own_buffers = self._local.buffers()

    def return_to(self, updates: int) -> None:
        """Stand where the agreed step begins, parameters and optimizers being there already."""
        if self._moment is not None and self._moment_of == updates:
            self._local.restore(self._moment)
        elif self._moment is not None and self.updates < updates:
            if self._local.modules.moved(self._moment.modules):
                raise PeerError("the step changes attributes of modules, and this rank has not seen it to its end")
            self._local.modules.put_back_attributes(self._moment.modules)
            self._local.clear_gradients(self._moment)
            self._carried.updated = self._carried.lacking = True
            if self._own_buffers is not None:
                self._local.put_back(self._own_buffers)
        self._own_buffers = None
        self.updates = updates
        self._torn = False

    def take_over(self, updates: int, data: bytes) -> None:
        """Begin where the dead rank's record stands. Raises PeerError when it does not fit."""
        opened, habits = self._local.adopt(data)
        self._loaders.adopt(opened)
        if self._ledger.failed_at != NEVER:  # what has failed is done again
            self._ledger.failed_at, self._ledger.failure = NEVER, ""
            self._ledger.save()
        self._updates.inherit(habits)
        self._own_buffers = None
        self.updates = updates
        self._carried.updated = True
        self._carried.lacking = not self._local.carried_gradients()

    def carried(self) -> tuple[int, bytes, dict[str, torch.Tensor]]:
        """How many loops and pieces of work between them were entered; what the gradients of steps before are, if they
        count on, and what they are to other ranks."""
        return self._place, *(self._carried.give() if self._carry_on() else (b"", {}))

    def carry(self, places: int, kind: bytes, gradients: dict[str, torch.Tensor]) -> None:
        """Go on with what the giver of this rank's state has `carried`. Raises PeerError if that is not this rank's."""
        self._giver_place = places
        self._carried.take(kind, gradients)

    _handed: Step
