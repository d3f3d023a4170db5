"""Lets no rank update its part of a model before all ranks have the gradients of theirs.

Where ranks hold different parts (state/parts.py) their gradients are averaged part by part. So when a rank dies, one
part may have made the update, and another one may have nobody left who can. Then there is nothing to go on from. The
gate is one small collective of all ranks in each step: before the first optimizer, or at the end of a step without one,
since steps of some ranks may be without. A healthy job whose ranks all have the whole model has none.

Failure modes: some ranks stand at the gate and others never come to one (so all agree on it when their first loop
begins, and a newcomer is told by the record of its life before); a rank dies in it (who has passed it holds the update,
who has not does not, and if that is a whole part, all start over: the manager says so). It decides nothing about a
repair.
"""

from __future__ import annotations

import struct

from taskd.state.parts import WHOLE
from taskd.worker.habits import Habits
from taskd.worker.heal import Repair

MIXED = "some ranks hold a part of the model that others share, and others do not"
_PART = struct.Struct("<q")


class Gate:
    """Of one session."""

    def __init__(self, repair: Repair, habits: Habits) -> None:
        self._repair, self._habits = repair, habits
        self._asked = False
        self._passed = True

    def agree(self, part: int) -> str:
        """All ranks are at their first loop, and find out whether there is a gate. Why a death would start all over, or
        nothing."""
        if self._asked or self._repair.newcomer or not self._repair.together.has_groups():
            return ""
        self._asked = True
        parts = [_PART.unpack(one)[0] for one in self._repair.together.everyone(_PART.pack(part))[0]]
        self._habits.gated = all(one > WHOLE for one in parts)
        return MIXED if not self._habits.gated and part > WHOLE else ""

    def begin(self) -> None:
        """A step begins."""
        self._passed = False

    def come(self) -> None:
        """This rank has its gradients, or needs none in this step. Raises StepAbandoned."""
        if self._habits.gated and not self._passed:
            self._passed = True
            self._repair.together.meet()
