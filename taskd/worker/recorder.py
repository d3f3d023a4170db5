"""Writes this rank's record in each step: when the step begins, when its forward ends, and sometimes at its end.

A newcomer that replaces this rank after an update begins with the last of these records.

Failure modes: a step may draw random numbers after its forward, or write into this rank's own buffers or objects there.
The newcomer would miss that, so such a step writes a record at its end, too. The steps themselves, and a rehearsal,
show whether this is needed. If the rank dies before that record, or the loop draws between two steps, nobody knows what
was drawn (standing.py refuses).
It does NOT say what a record means (state/record.py, state/local.py), and decides nothing about a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.state.local import Captured, Left
from taskd.state.modules import Noted
from taskd.state.record import Occasion
from taskd.worker.heal import Repair
from taskd.worker.loaders import Loaders
from taskd.worker.registered import Registered


@dataclass(slots=True, frozen=True)
class Begun:
    """A step, and this rank's own state when the step began."""

    number: int
    moment: Captured


class Recorder:
    """Writes the records of one session."""

    def __init__(self, registered: Registered, repair: Repair, loaders: Loaders) -> None:
        self._registered, self._repair, self._loaders = registered, repair, loaders
        self._forward: Noted | None = None
        """The modules when the last step's backward began."""
        self._left: Left | None = None
        """What was drawn and written by the end of the last forward, or step, of this loop."""

    def begins(self, begun: Begun, before: Begun | None, generators: bytes) -> None:
        """Record the first attempt at a step. `before`: the step before it; `generators`: those before its batch was
        loaded."""
        habits, modules = self._registered.calls.habits, begun.moment.modules
        habits.unseen |= before is not None and not before.moment.modules.alike(modules)
        left = self._left
        here = left is not None and left.loop == self._registered.local.loop  # otherwise there was something between
        habits.late |= here and self._forward is not None and not self._forward.alike(modules)
        follows = before is not None and before.number == begun.number - 1
        if left is not None and here and follows:
            now = self._registered.local.drawn_and_written()
            habits.moves_between |= left != now._replace(generators=generators)
        self._write(Occasion.START, begun, generators)

    def forward_ended(self, begun: Begun) -> None:
        """Record that the backward begins: from now on a gradient may leave this rank."""
        if self._repair.records:
            moment = self._registered.local.capture(False)
            self._forward, self._left = moment.modules, self._registered.local.drawn_and_written()
            self._write(Occasion.FORWARD, Begun(begun.number, moment), moment.generators)

    def ended(self, updates: int, carries_on: bool) -> None:
        """Record the end of a step, if it has moved on since its forward. `carries_on`: its gradients accumulate."""
        if self._left is not None and self._repair.records and self._has_moved_on():
            moment = self._registered.local.capture(carries_on)
            self._write(Occasion.START, Begun(updates, moment), moment.generators, whole=False)

    def forward_rehearsed(self) -> None:
        """Note the end of a rehearsed forward. Nothing of it is recorded."""
        self._left = self._registered.local.drawn_and_written()

    def rehearsed(self) -> None:
        """Note the end of a rehearsed step."""
        if self._left is not None:
            self._has_moved_on()
        self._left = None

    def _has_moved_on(self) -> bool:
        before, self._left = self._left, self._registered.local.drawn_and_written()
        moves = before != self._left
        self._registered.calls.habits.moves_on |= moves
        return moves

    def _write(self, occasion: Occasion, begun: Begun, generators: bytes, whole: bool = True) -> None:
        if self._repair.records:
            calls, local = self._registered.calls, self._registered.local
            late = calls.habits.late and occasion is Occasion.FORWARD
            whole = whole and occasion is Occasion.START
            opened = self._loaders.pack()
            pieces = local.pack(begun.moment, generators, opened, calls.pack_habits(), late, whole)
            self._repair.record(occasion, begun.number, pieces)
