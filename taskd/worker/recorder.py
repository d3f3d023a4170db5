"""What a step leaves in this rank's record: as it begins, when its forward has ended, and at its end, if it went on.

Whoever replaces this rank behind an update begins with the last of these. Failure modes: a step draws random numbers
behind its forward, or writes into buffers or objects of this rank's own there, and the newcomer would begin without
that: so such steps leave a record of their end, too, and whether they are such is learned from them, in a rehearsal as
well. The rank dies before
that record, or the loop draws between two steps: then nobody knows what was drawn (standing.py refuses).
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
    """A step as it found things."""

    number: int
    moment: Captured


class Recorder:
    """Of one session."""

    def __init__(self, registered: Registered, repair: Repair, loaders: Loaders) -> None:
        self._registered, self._repair, self._loaders = registered, repair, loaders
        self._forward: Noted | None = None
        """Modules, when the last step's backward began."""
        self._left: Left | None = None
        """What the last forward, or step, of this loop has left."""

    def begins(self, begun: Begun, before: Begun | None, generators: bytes) -> None:
        """A step begins for the first time. `before`: the last one; `generators`: before its batch was loaded."""
        habits, modules = self._registered.calls.habits, begun.moment.modules
        habits.unseen |= before is not None and not before.moment.modules.alike(modules)
        habits.late |= self._forward is not None and not self._forward.alike(modules)
        left = self._left
        follows = before is not None and before.number == begun.number - 1
        if left is not None and follows and left.loop == self._registered.local.loop:
            habits.moves_between |= left.generators != generators
        self._write(Occasion.START, begun, generators)

    def forward_ended(self, begun: Begun) -> None:
        """Its backward begins: a gradient may leave this rank."""
        if self._repair.records:
            moment = self._registered.local.capture(False)
            self._forward, self._left = moment.modules, self._registered.local.drawn_and_written()
            self._write(Occasion.FORWARD, Begun(begun.number, moment), moment.generators)

    def ended(self, updates: int, carries_on: bool) -> None:
        """A step is over. `carries_on`: its gradients count on."""
        if self._left is not None and self._repair.records and self._has_moved_on():
            moment = self._registered.local.capture(carries_on)
            self._write(Occasion.START, Begun(updates, moment), moment.generators, whole=False)

    def forward_rehearsed(self) -> None:
        """Nothing of it is written."""
        self._left = self._registered.local.drawn_and_written()

    def rehearsed(self) -> None:
        """The step of which nothing is kept is over."""
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
