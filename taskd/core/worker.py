"""The worker's side of the control plane: what one training process does about an order, stage by stage.

The worker never needs the manager to make progress. It starts RUNNING (or, as a newcomer, in SETUP), and only an order
of a newer epoch interrupts it. What can go wrong, and what the worker does then:

- *Orders are lost, duplicated or late.* An order is a level. The worker advances towards the newest order, one stage at
  a time. An order for a stage that it has reached makes it report its stage again. Older terms, epochs and stages are
  void.
- *A newer epoch comes in the middle of any stage.* It starts over at PARK. What the shell still says of the older epoch
  is void.
- *Its seat has gone to a newer incarnation.* It quits: two incarnations of one rank never act in one epoch.
- *A stage cannot be done.* It reports that with the reason and stays STUCK until a newer epoch comes. It never guesses.
- *An error has left its step.* It reports that it runs and cannot go on. This is a level, too: it holds until a repair
  begins, or until the worker is told that none will.

Invariants: the epoch only grows; inside an epoch the stage only goes forward; at most one effect is under way.
Not here: how anything is parked, rebuilt or restored (the shell), and when it has taken too long (the manager).
"""

from __future__ import annotations

from enum import Enum, auto

from taskd.core.counters import Counters
from taskd.core.effects import LetGo, Park, Quit, Reach, Rebuild, Restore, Resume, Save, WorkerEffect
from taskd.core.events import Done, Raised, WorkerEvent
from taskd.core.messages import Order, StageReached, Stop, Unmended, WorkerWelcome
from taskd.core.table import Table
from taskd.core.types import NOTHING_KEPT, PROGRESS, Stage
from taskd.core.words import cut


class WorkerState(Enum):
    """The state of one training process."""

    SETUP = auto()
    RUNNING = auto()
    PARKING = auto()
    PARKED = auto()
    SAVING = auto()
    SAVED = auto()
    REBUILDING = auto()
    REBUILT = auto()
    RESTORING = auto()
    RESTORED = auto()
    RESUMING = auto()
    STUCK = auto()
    ENDED = auto()


class WorkerCause(Enum):
    """What changes a worker's state."""

    PARK = auto()  # an order of a newer epoch wants a repair
    ADVANCE = auto()  # the order of this epoch wants a later stage
    SAVE = auto()  # the order of this epoch wants the last checkpoint
    DONE = auto()  # the shell has done what was asked
    FAILED = auto()  # the shell could not
    MEMBERSHIP = auto()  # an order of a newer epoch names the members and says: go on
    END = auto()  # the seat has gone to another incarnation, or the job stops


_S, _C = WorkerState, WorkerCause
_BUSY = (_S.SAVING, _S.REBUILDING, _S.RESTORING, _S.RESUMING)
_STAYING = (_S.PARKED, _S.SAVED, _S.REBUILT, _S.RESTORED, _S.STUCK)

WORKER = Table(
    "worker",
    "One training process in the repair of its epoch.",
    (_S.RUNNING, _S.SETUP),
    [
        (_S.SETUP, _C.PARK, _S.SETUP),
        (_S.SETUP, _C.DONE, _S.PARKED),
        (_S.SETUP, _C.FAILED, _S.STUCK),
        (_S.SETUP, _C.MEMBERSHIP, _S.SETUP),
        (_S.RUNNING, _C.PARK, _S.PARKING),
        (_S.RUNNING, _C.MEMBERSHIP, _S.RUNNING),
        (_S.PARKING, _C.PARK, _S.PARKING),
        (_S.PARKING, _C.DONE, _S.PARKED),
        (_S.PARKING, _C.MEMBERSHIP, _S.RESUMING),
        ((*_STAYING, *_BUSY), _C.PARK, _S.PARKING),
        ((*_STAYING, *_BUSY), _C.MEMBERSHIP, _S.RESUMING),
        (_S.PARKED, _C.SAVE, _S.SAVING),
        (_S.SAVING, _C.DONE, _S.SAVED),
        ((_S.PARKED, _S.SAVED), _C.ADVANCE, _S.REBUILDING),
        (_S.REBUILT, _C.ADVANCE, _S.RESTORING),
        (_S.RESTORED, _C.ADVANCE, _S.RESUMING),
        (_S.REBUILDING, _C.DONE, _S.REBUILT),
        (_S.RESTORING, _C.DONE, _S.RESTORED),
        (_S.RESUMING, _C.DONE, _S.RUNNING),
        (_BUSY, _C.FAILED, _S.STUCK),
        ((_S.SETUP, _S.RUNNING, _S.PARKING, *_STAYING, *_BUSY), _C.END, _S.ENDED),
    ],
)

_STAGE_OF = {
    _S.PARKED: Stage.PARKED,
    _S.SAVED: Stage.SAVED,
    _S.REBUILT: Stage.REBUILT,
    _S.RESTORED: Stage.RESTORED,
    _S.RUNNING: Stage.RUNNING,
}
_GOAL_OF = {
    _S.SETUP: Stage.PARKED,
    _S.PARKING: Stage.PARKED,
    _S.SAVING: Stage.SAVED,
    _S.REBUILDING: Stage.REBUILT,
    _S.RESTORING: Stage.RESTORED,
    _S.RESUMING: Stage.RUNNING,
}


class Worker:
    """One training process. It was started in `epoch`. A `newcomer` joins survivors and starts in SETUP."""

    def __init__(self, rank: int, incarnation: int, epoch: int, newcomer: bool) -> None:
        self.rank = rank
        self.incarnation = incarnation
        self.epoch = epoch
        self.term = 0
        self.state = WorkerState.SETUP if newcomer else WorkerState.RUNNING
        self.updates = -1
        self.part = 0
        """The part of the model that this process holds: see core/fields.py."""
        self.kept = NOTHING_KEPT
        """To which numbers of updates it could bring its part by itself, when it parked."""
        self.counters = Counters()
        self._error = ""  # the error that has left its step and waits for a repair
        self._order: Order | None = None
        self._said: StageReached | None = None  # the result of the newest stage, to be sent again when asked
        self._reached = Stage.SETUP if newcomer else Stage.RUNNING

    @property
    def stage(self) -> Stage:
        """The last stage that it has reached in its epoch. A hello carries this stage. SETUP: none yet."""
        return self._reached

    def step(self, now_ns: int, event: WorkerEvent) -> list[WorkerEffect]:
        """Take one event. Every machine gets the time, but no decision of a worker depends on it."""
        if self.state is WorkerState.ENDED:
            return []
        if isinstance(event, Order):
            return self._ordered(event)
        if isinstance(event, Done):
            return self._done(event)
        if isinstance(event, WorkerWelcome):
            if event.accepted and event.incarnation > self.incarnation:
                self.incarnation = event.incarnation
            return []
        if isinstance(event, Raised):
            return self._raised(event.updates, event.reason)
        if isinstance(event, Unmended):
            holds = self.state is WorkerState.RUNNING and event.epoch >= self.epoch  # >=: it starts at epoch 0
            return [*self._raised(self.updates, ""), LetGo(self.epoch)] if holds else []
        if isinstance(event, Stop):
            if event.term < self.term:
                self.counters.count("stop of an older term")
                return []
            return self._quit(event.exit_code, event.reason)
        return []

    # ---- orders -----------------------------------------------------------------------------------------------

    def _ordered(self, order: Order) -> list[WorkerEffect]:
        if order.term < self.term:
            self.counters.count("order of an older term")
            return []
        if order.epoch < self.epoch:
            self.counters.count("order of an older epoch")
            return []
        self.term = order.term
        seat = next((seat for seat in order.seats if seat.rank == self.rank), None)
        if seat is not None and seat.incarnation > self.incarnation:
            reason = f"rank {self.rank} goes on as incarnation {seat.incarnation} on node {seat.node}"
            return self._quit(0, reason)
        if order.epoch > self.epoch:
            return self._enter(order)
        held = self._order
        if held is not None and PROGRESS[order.stage] < PROGRESS[held.stage]:
            self.counters.count("order of an older stage")
            return []
        self._order = order
        return self._advance(told=True)

    def _enter(self, order: Order) -> list[WorkerEffect]:
        """Leave everything that is under way, and enter a newer epoch."""
        self.epoch = order.epoch
        self._order = order
        self._said = None
        if self.state is not WorkerState.RUNNING or order.stage is not Stage.RUNNING:
            self._reached = Stage.SETUP
        if order.stage is not Stage.RUNNING:
            self._error = ""
            self._move(WorkerCause.PARK)
            return [Park(order.epoch)]
        self._move(WorkerCause.MEMBERSHIP)
        if self.state is WorkerState.RESUMING:
            return [Resume(order.epoch, order.updates)]
        return self._say(self.stage, not self._error, self._error)

    def _advance(self, told: bool) -> list[WorkerEffect]:
        """Go one stage further if the order wants it. Otherwise, if `told`, report the reached stage again."""
        order = self._order
        if order is None or self.state in _GOAL_OF:
            return []
        reached = PROGRESS[_STAGE_OF[self.state]] if self.state in _STAGE_OF else None
        if reached is None or reached >= PROGRESS[order.stage]:
            if reached is not None and reached > PROGRESS[order.stage]:
                self.counters.count("order of an older stage")
            if not told:
                return []
            return [Reach(self._said)] if self._said is not None else self._say(self.stage, True, "")
        self._move(WorkerCause.SAVE if order.stage is Stage.SAVED else WorkerCause.ADVANCE)
        if self.state is WorkerState.SAVING:
            return [Save(order)]
        if self.state is WorkerState.REBUILDING:
            return [Rebuild(order)]
        if self.state is WorkerState.RESTORING:
            return [Restore(order)]
        assert self.state is WorkerState.RESUMING
        return [Resume(order.epoch, order.updates)]

    def _raised(self, updates: int, error: str) -> list[WorkerEffect]:
        """Take an error that waits for a repair. Empty: it waits no longer."""
        if self.state is not WorkerState.RUNNING or error == self._error:
            return []  # an order has come first
        self._error, self.updates = cut(error), updates
        return self._say(Stage.RUNNING, not error, error)

    # ---- the shell's answers ----------------------------------------------------------------------------------

    def _done(self, done: Done) -> list[WorkerEffect]:
        if done.epoch != self.epoch:
            self.counters.count("done in another epoch")
            return []
        if self.state is WorkerState.RUNNING and done.stage is Stage.RUNNING and done.ok:
            if done.updates == self.updates:
                return []
            self.updates = done.updates  # the first step after a repair is done: this closes the incident's record
            return self._say(Stage.RUNNING, True, "")
        if _GOAL_OF.get(self.state) is not done.stage:
            self.counters.count("done out of turn")
            return []
        if not done.ok and done.stage is Stage.PARKED and self.state is WorkerState.PARKING:
            # A survivor that has parked but holds nothing of use (it was inside its update, say) is like a newcomer.
            self._move(WorkerCause.DONE)
            self.updates, self._reached, self.part, self.kept = -1, Stage.PARKED, done.part, done.kept
            return [*self._say(Stage.PARKED, False, done.reason), *self._advance(told=False)]
        self._move(WorkerCause.DONE if done.ok else WorkerCause.FAILED)
        if done.ok:
            self.updates, self._reached = done.updates, done.stage
            if done.stage is Stage.PARKED:
                self.part, self.kept = done.part, done.kept
        return [*self._say(done.stage, done.ok, done.reason), *self._advance(told=False)]

    def _say(self, stage: Stage, ok: bool, reason: str) -> list[WorkerEffect]:
        self._said = StageReached(
            self.rank,
            self.incarnation,
            self.epoch,
            stage,
            self.updates,
            ok,
            cut(reason),
            self.part,
            self.kept.first,
            self.kept.last,
        )
        return [Reach(self._said)]

    def _quit(self, exit_code: int, reason: str) -> list[WorkerEffect]:
        self._move(WorkerCause.END)
        return [Quit(exit_code, reason)]

    def _move(self, cause: WorkerCause) -> None:
        self.state = WORKER.after(self.state, cause)
