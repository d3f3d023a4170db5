"""The gate: no rank updates its part of a model before all ranks have the gradients of their own parts.

If ranks hold different parts (state/parts.py), gradients are averaged part by part. When a rank dies, the ranks of one
part may have made the update already, while another part has no rank left that can make it. Then there is no common
state to go on from. If a part is kept (keeping.py), the gate also shows that all ranks have written what leads to
the update. The gate is one small collective of all ranks in each step. It runs before the first optimizer, or
at the end of a step without an optimizer, because some ranks may have such steps. A job whose ranks all hold the whole
model has no gate.

Failure modes: some ranks wait at the gate and others never reach one (so all ranks agree on it when their first loop
begins, and a newcomer reads it from the record of its life before); a rank dies in the gate (ranks that have passed it
hold the update, the others do not; if a whole part lacks it, all ranks start over, as the manager decides). It decides
nothing about a repair.
"""

from __future__ import annotations

import struct

from taskd.state.parts import WHOLE
from taskd.worker.habits import Habits
from taskd.worker.heal import Repair
from taskd.worker.keeping import Keeping

MIXED = "some ranks hold a part of the model that others share, and others do not"
_PART = struct.Struct("<q")


class Gate:
    """The gate of one session."""

    def __init__(self, repair: Repair, habits: Habits, keeping: Keeping) -> None:
        self._repair, self._habits, self._keeping = repair, habits, keeping
        self._passed = True
        self._step = 0

    def agree(self, part: int, sharded: bool) -> str:
        """Agree with all ranks, at the first loop, whether there is a gate. `sharded`: a model has shards, so all ranks
        may have parts without any group. Return why a death would make all start over, or an empty text."""
        if self._habits.asked or self._repair.newcomer or not self._repair.together.has_groups(sharded):
            return ""
        self._habits.asked = True
        parts = [_PART.unpack(one)[0] for one in self._repair.together.everyone(_PART.pack(part))[0]]
        self._habits.gated = all(one > WHOLE for one in parts)
        return MIXED if not self._habits.gated and part > WHOLE else ""

    def begin(self, step: int) -> None:
        """Note that a step begins."""
        self._passed, self._step = False, step

    def come(self, updates: bool = True) -> None:
        """Wait for all ranks: this rank has its gradients. `updates`: False if it needs none in this step. Raises
        StepAbandoned."""
        self._repair.together.settle()
        if self._passed and updates:
            self._keeping.updates_again()
        if self._habits.gated and not self._passed:
            self._passed = True
            self._keeping.comes_to_gate(self._step, updates)
            self._repair.together.meet()
