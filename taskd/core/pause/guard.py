"""The step guard of one rank: whether it may begin its next step, or stands before it because of a pause.

A pause needs two phases. ASK: the rank tells which step it has begun, and promises not to begin another one until it
hears more. STAND: all ranks have promised, so the manager knows a step that no rank has begun, and nobody begins that
one. What can go wrong, and what follows:

- *Nothing is heard after the promise* (the manager or the network is gone): the promise ends after PAUSE_PROMISE_NS.
- *Nobody resumes the job*: the lease ends on this rank's own clock. No message is needed for that.
- *The order comes too late, or the lease has ended here alone*: the rank has begun that step. It says so, and the
  manager agrees with all ranks on a later step.
- *A repair sets the training back*: the rank tells its new place. The order stays in force.
- *A script counts its steps in its own way* (from 1000 on): the rank stands before the first number that is not below
  the agreed one, and tells which one that is.

Invariants: while an order to stand holds, this rank begins no step from the ordered one on; it never stands longer than
the lease. Not here: waiting, threads, devices (worker/pausing.py).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.pause.messages import PauseAnswer, PauseOrder
from taskd.core.types import PauseKind
from taskd.core.words import cut


class StepGuard:
    """What one training process knows about a pause. Times are its own clock."""

    def __init__(self) -> None:
        self.begun = -1
        self.stands = False
        self.until: int | None = None  # when the order in force ends by itself; None: not known yet, or never
        self.order: PauseOrder | None = None
        self._limit = -1
        self._lapsed = False
        self._said: tuple[object, ...] = ()

    @property
    def number(self) -> int:
        """The number of the order in force. 0: there was none yet."""
        return 0 if self.order is None else self.order.number

    @property
    def holds(self) -> bool:
        """Whether an order in force keeps this rank from beginning some step."""
        return self._limit >= 0 and not self._lapsed

    def ordered(self, now: int, order: PauseOrder) -> None:
        """Take an order. A repeated one makes the lease shorter and never longer."""
        held = self.order
        newer = held is None or (order.number, order.term) > (held.number, held.term)
        if not newer and held is not None and (order.number, order.term) < (held.number, held.term):
            return
        left_ns = order.left_ms * limits.MS
        if order.kind is PauseKind.ASK:
            left_ns = min(left_ns, limits.PAUSE_PROMISE_NS)
        if newer:
            self.order, self._lapsed, self.until, self._said = order, False, None, ()
            self._limit = {PauseKind.FREE: -1, PauseKind.ASK: self.begun + 1, PauseKind.STAND: order.step}[order.kind]
            # An order that comes too late would stop this rank at a boundary that nobody has named.
            self._lapsed = not self.stands and self.begun >= self._limit
        if order.kind is not PauseKind.FREE and (order.counts or self.stands):
            self.until = now + left_ns if self.until is None else min(self.until, now + left_ns)

    def may_begin(self, now: int, step: int) -> bool:
        """Whether this rank begins `step` now. False: it stands before it, until an order or the lease's end."""
        if self.until is not None and now >= self.until:
            self._lapsed = True
        if not self.holds or step < self._limit:
            self.begun, self.stands = step, False
            return True
        if step == self.begun and not self.stands:
            return True  # it has begun this step already
        self.begun = step - 1
        if self.until is None and self.order is not None:
            self.until = now + self.order.left_ms * limits.MS
        return False

    def free(self) -> None:
        """Follow the order no longer: no other one can come."""
        self._lapsed = True

    def leaves(self) -> None:
        """Note that it stands no longer, but begins no step either: a repair takes it along, or its script ends."""
        self.stands = False

    def set_back(self, updates: int) -> None:
        """Note that a repair has set the training to this number of updates: that step is the next one."""
        self.begun, self.stands = updates - 1, False

    def news(self) -> bool:
        """Whether there is something to say that was not said yet about the order in force."""
        if self.order is None or self.order.kind is PauseKind.FREE:
            return False
        says = (self.stands, self.begun if self.stands else self.begun >= self._limit)
        if says == self._said:
            return False
        self._said = says
        return True

    def answer(self, rank: int, incarnation: int, trouble: str) -> PauseAnswer:
        """Return the answer to the order in force."""
        self.news()
        begun = min(max(self.begun, -1), limits.MAX_STEP)
        return PauseAnswer(rank, incarnation, self.number, begun, self._limit, self.stands, cut(trouble))
