"""The step as a transaction: what is noted when it begins, and what is done when it ends or is given up.

In a healthy step this module communicates with no other process. It notes the random generators, buffers and the like,
and writes a copy to this rank's record. When a repair is ordered, StepAbandoned leaves the step and the `with` catches
it. The training thread itself then goes through the repair (heal.py), and the loop hands out the agreed step. The table
in step_state.py lists the states of a step and what may happen in each.

Failure modes: a fault before, in and after the optimizer (calls.py decides what this rank then holds); a fault while a
repair is under way (the repair starts over); a step whose body communicates, saves or draws outside of `with step:`.

Invariants: `updates` counts the steps whose complete update this rank holds; a step that is given up leaves no file and
no log, and its update is either complete, undone or not begun, or all start over; nothing of a rehearsal is kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from taskd import log
from taskd.core.types import Phase
from taskd.errors import StepAbandoned, UsageError
from taskd.state import rng
from taskd.state.ledger import Ledger
from taskd.state.local import Captured
from taskd.state.manifest import origin
from taskd.worker import hooks, pausing
from taskd.worker.calls import Outcome
from taskd.worker.carried import Carried
from taskd.worker.counting import Counting
from taskd.worker.effects import Effects
from taskd.worker.feed import AnotherBatch, Feed, LoaderEnded
from taskd.worker.heal import Repair
from taskd.worker.kept_files import KeptFiles
from taskd.worker.leftovers import Leftovers
from taskd.worker.loaders import Loaders
from taskd.worker.naming import told
from taskd.worker.notes import Notes
from taskd.worker.prover import Prover
from taskd.worker.raised import Raised
from taskd.worker.recorder import Begun, Recorder
from taskd.worker.registered import Registered
from taskd.worker.step import Step
from taskd.worker.step_state import StepEvent, StepMachine, StepState

BETWEEN = "ranks communicate between two steps: if one dies there, all start over; do it inside of `with step:`"
LOADER_TALKS = "the loader communicates when it is opened or asked for a batch"
UNREHEARSED = "a newcomer cannot rehearse the step"
MISCOUNTED = (
    "the loop numbers its steps by itself, in a way that no repair puts back: a step that is done again, or the first "
    "one of a newcomer, would get another number; let step.number or enumerate(session.steps()) say it"
)
_LOOKS = 2
"""The number of steps of an epoch after which it is known what its loader draws."""
_logger = log.get(__name__)


class Transaction:
    """The current step of one session, or its last one."""

    def __init__(
        self,
        step: StepMachine,
        registered: Registered,
        repair: Repair,
        ledger: Ledger,
        loaders: Loaders,
        run_repair: Callable[[], None],
        refuse: Callable[[str], None],
    ) -> None:
        """`run_repair` goes through an ordered repair; `refuse` makes all ranks start over and never returns."""
        self.step, self.registered = step, registered
        self._repair, self._loaders = repair, loaders
        self._run_repair, self._refuse = run_repair, refuse
        self.updates = 0
        """The number of completed steps, which is also the number of the next step."""
        self.carried = Carried(registered.replica, registered.local)
        self.effects = Effects(ledger, repair.operations)
        leftovers = Leftovers(registered, repair, step, refuse)
        notes, files = Notes(registered, ledger, repair), KeptFiles(step, ledger, registered, repair, refuse)
        self.variables = Counting(registered, repair, refuse, notes, leftovers, files)
        self.prover = Prover(registered.replica, repair)
        self._recorder = Recorder(registered, repair, loaders)
        self.feed: Feed | None = None
        self.begun: Begun | None = None
        self.current: Step | None = None
        self.raised = Raised(registered, repair)
        self.checked = False
        """One step of this process has ended, and what it changed was checked."""
        self._handed: Step | None = None
        self._last = -1, b""  # the step last handed out, and the generators when it was first handed out

    # ---- handing out ------------------------------------------------------------------------------------------

    def given_up(self) -> bool:
        """Whether the current step is given up, or the next step will not begin."""
        return self._repair.ordered() or self.step.in_repair

    def hand_out(self, feed: Feed, start: int) -> Step:
        """Return the next step of a loop that began after `start` updates. Raises StepAbandoned if a collective of the
        loader was given up, or if the loader raised an error and will be asked once more; LoaderEnded."""
        begun, number = self._repair.operations(), self.updates
        batch: Any = None
        ended: LoaderEnded | None = None
        try:
            batch = self.raised.batch(feed, number, start)
        except LoaderEnded as error:
            ended = error
        except AnotherBatch as error:
            self._refuse(str(error))
        if self._repair.operations() != begun:
            self.registered.done_outside([LOADER_TALKS])
        if ended is not None:
            raise ended
        caught = number == self.raised.left
        self.variables.handed_out(number, feed.early, raised=number == self.raised.tried, caught=caught)
        self.variables.leftovers.handed_out(number, feed, (self.begun, self.prover))
        if not self.variables.numbers(number, feed):
            self._refuse(MISCOUNTED)
        last, generators = self._last
        step = self._handed = Step(self, number, batch, again=number == last, caught=caught)
        if not step.again:
            self._last = number, rng.capture() if self._repair.heals else b""
        elif generators and not caught:
            rng.restore(generators)  # the body may draw before it enters the step
        self.step.happens(StepEvent.HANDED_OUT)
        return step

    def hand_out_rehearsal(self, number: int, batch: Any, *, passes_loop: bool = False) -> Step:
        """Return a step for a rehearsal. Nothing of it is kept. `passes_loop`: the script goes on behind the loop, and
        does no step in it."""
        rehearsing = self.registered.calls.rehearsing
        rehearsing.passes_loop, rehearsing.loops = passes_loop, self.variables.rehearsal_begins()
        step = self._handed = Step(self, number, batch, rehearsal=True)
        return step

    def take_back(self) -> None:
        """Note that the script asks for the next step, or has left the loop."""
        self.step.happens(StepEvent.TAKEN_BACK)

    def check_used(self) -> None:
        """Raise UsageError if the step that was handed out was never entered, or is not left yet."""
        if self._handed is not None and not self._handed.used:
            raise UsageError("a step was not used: put the body of the loop inside `with step:`")
        if self.current is not None:
            raise UsageError("the next step was asked for inside of `with step:`")

    @property
    def is_behind_a_step(self) -> bool:
        """Whether the script is in a loop's body, after its `with step:`."""
        return self.step.state is StepState.LOOP and self._handed is not None and self._handed.used

    # ---- `with step:` -----------------------------------------------------------------------------------------

    def enter(self, step: Step) -> None:
        """Begin the body of a step. Raises UsageError inside another step."""
        if self.current is not None:
            raise UsageError("a step was entered inside of another one")
        if self.step.in_repair:
            raise UsageError("an error has left the repair of this step: ask the loop for the next one")
        self.effects.begin()
        self.current, self.raised.left = step, None
        self.step.happens(StepEvent.ENTERED)
        if not step.rehearsal:
            self.registered.gate.begin(step.number)
            if not step.caught:
                self.registered.local.losses.step_begins(step.number)
            self.variables.body_begins(step.number)
        self.registered.doubts.look("what a step begins with", self._note, step)
        if not step.rehearsal:
            hooks.mark_step(step.number, Phase.BODY)

    def _note(self, step: Step) -> None:
        """Note everything that this step may change."""
        calls, local = self.registered.calls, self.registered.local
        if calls.begin(step.rehearsal):
            self.registered.warn([BETWEEN])
            self.registered.tell_cover(BETWEEN)
        if step.rehearsal:
            return
        self.registered.done_outside(self.outside())
        if local.origin < 0 and self._repair.records:
            local.origin = origin(self.registered.replica)
        assert self.feed is not None
        before = self.begun
        if before is not None and before.number == step.number and step.again:
            if not step.caught:
                local.restore(before.moment)  # undoes what followed the first attempt, and what came before this one
            return
        self.begun = Begun(step.number, local.capture(self.carries_on()))
        self._recorder.begins(self.begun, before, self.feed.before)
        self.registered.keeping.step_begins(step.number)

    def outside(self) -> list[str]:
        """List what was done at places where it cannot be done again."""
        return [*self.registered.calls.outside(), *self.effects.outside()]

    def forward_ended(self) -> None:
        """Called before any gradient leaves this rank."""
        step, doubts = self.current, self.registered.doubts
        self.variables.backward_begins()
        self.registered.calls.forward_ended()
        doubts.look("models that reduce gradients", self.carried.forward_ended)
        if step is not None and step.rehearsal:
            doubts.look("what a forward has left", self._recorder.forward_rehearsed)
        if step is None or step.rehearsal or self.given_up():
            return
        self.effects.forward_ended(step.number)
        if self.begun is not None:
            doubts.look("what a forward has left", self._recorder.forward_ended, self.begun)

    def saves(self) -> None:
        """Note that the body calls torch.save() itself. Raises StepAbandoned in a step that is given up."""
        if self.current is None:
            return
        if self.given_up():
            raise StepAbandoned("torch.save() belongs to a step that is given up")
        self.registered.calls.may_end_here()
        self.registered.warn(self.effects.saves())

    def on_commit(self, step: Step, function: Callable[..., Any], values: tuple[Any, ...]) -> None:
        """See Step.on_commit."""
        if step is not self.current:
            raise UsageError("step.on_commit() was called outside of `with step:`")
        self.variables.leftovers.to_be_saved(values)
        self.effects.add(function, values)

    def leave(self, step: Step, error: BaseException | None) -> bool:
        """Leave the body. Return whether the error that left it, if any, is swallowed here."""
        self.current = None
        if step.rehearsal:
            calls = self.registered.calls
            ended_by = told(error) if error is not None and calls.rehearsing.is_behind else ""
            if self.step.under_way:  # no refusal has led to a repair
                self.step.happens(StepEvent.REHEARSED)
            self.registered.doubts.look("what a step has left", self._recorder.rehearsed)
            calls.rehearsed(ended_by)
            if isinstance(error, Exception) and (not ended_by or self.raised.is_torn(error)):
                self._refuse(f"{UNREHEARSED}: {told(error)}")
            return error is None or isinstance(error, (StepAbandoned, Exception))
        if error is None:
            self.variables.body_ended(step.number)
            with contextlib.suppress(StepAbandoned):  # given_up() below tells the same
                self.registered.gate.come(updates=False)
        given_up = self.given_up() or isinstance(error, StepAbandoned)
        if isinstance(error, Exception) and not given_up:
            self.variables.leftovers.step_raised(error)
            self.registered.local.losses.forget()  # perhaps it was raised because of them
        ordinary = isinstance(error, (Exception, StepAbandoned)) and not isinstance(error, UsageError)
        if error is not None and ordinary and not given_up and self.step.state is StepState.BODY:
            given_up = self.raised.is_tried_again(step.number, error)
        if error is not None and not (given_up and ordinary):
            self.raised.left = step.number
            self.registered.keeping.step_left()
            self.step.happens(StepEvent.RAISED)
            return False  # the user's own error, or an interrupt: taskd must not swallow it
        if given_up:
            self._give_up(step, to_its_end=error is None)
        else:
            self._end(step)
        self.step.happens(StepEvent.HANDED_OUT)
        return True

    def _end(self, step: Step) -> None:
        self.step.happens(StepEvent.COMMITTED)
        self.registered.warn(self.effects.late(step.number))
        doubts = self.registered.doubts
        self.carried.updated = bool(doubts.look("what a step has changed", self.registered.calls.commit))
        self._commit(step)
        calls, keeping = self.registered.calls, self.registered.keeping
        seen = self.updates, calls.moving.late, bool(calls.habits.talkers), self._repair.operations
        if doubts.look("what a step has changed", keeping.step_ended, *seen):
            calls.repaired()
        doubts.look("what a step has left", self._recorder.ended, self.updates, self.carries_on())
        doubts.look("what a step has left", self.prover.committed, self.updates)

    def _give_up(self, step: Step, *, to_its_end: bool) -> None:
        step.given_up = True
        self.step.happens(StepEvent.ABANDONED)
        if self.registered.doubts.sentence:
            self.heal()
            return
        try:
            if self._outcome(to_its_end) is Outcome.WHOLE:
                self._commit(step)
        finally:
            self.heal()  # an error in the step's on_commit functions is then raised after the repair
        self.effects.pay(self.updates)  # if the update came from another rank

    def _outcome(self, to_its_end: bool) -> Outcome:
        """Return what this rank holds of a step that is given up, and make its own state match."""
        assert self.begun is not None
        local, moment = self.registered.local, self.begun.moment
        try:
            outcome = self.registered.calls.give_up(to_its_end, local.modules.moved(moment.modules))
            self.registered.keeping.given_up(self.registered.calls.moving.late)
        except BaseException:  # raised by a call that was to finish the step
            self.step.happens(StepEvent.TORE)
            raise
        if outcome is Outcome.TORN:
            self.step.happens(StepEvent.TORE)
        elif outcome is Outcome.WHOLE:
            self.carried.updated = True
            local.clear_gradients(moment)
            if not to_its_end:
                local.modules.put_back_attributes(moment.modules)
        return outcome

    def _commit(self, step: Step) -> None:
        self.updates = step.number + 1
        self.carried.committed()
        self._repair.committed(self.updates)
        hooks.mark_step(step.number, Phase.BETWEEN)
        self.effects.pay(self.updates)
        if not self.checked:
            self.checked = True
            self.registered.check()
            self.registered.warn([*filter(None, [self._loaders.flaw()])])
        feed = self.feed
        opened = feed is not None and feed.extent.position(step.number - feed.numbering.start) < _LOOKS
        self.registered.tell_cover(self._loaders.flaw() if opened else "")

    # ---- between steps ----------------------------------------------------------------------------------------

    def heal(self) -> None:
        """Go through the repair that was ordered."""
        hooks.mark_phase(Phase.PARKED)
        if not self.step.in_repair:
            self.step.happens(StepEvent.ABANDONED)
        self._run_repair()
        pausing.set_back(self.updates)
        self.prover.healed()
        self.registered.calls.repaired()
        self.step.happens(StepEvent.RESUMED)

    def carries_on(self) -> bool:
        """Whether gradients of earlier steps still accumulate: the last step made some and no optimizer used them."""
        return self.updates > 0 and not self.carried.updated

    def pack(self, moment: Captured) -> list[bytes]:
        """Pack a moment between two loops for the ledger."""
        habits = self.registered.calls.pack_habits()
        return self.registered.local.pack(moment, moment.generators, b"", habits, False)
