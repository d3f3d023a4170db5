"""Takes back a step that was given up: its optimizers' steps, parameters that moved, what a scaler has noted.

Optimizers are undone by the copies that were made before they stepped (undo.py), parameters that moved without one by
those of state/moving.py. Where a copy is missing the step is torn, and the reason is told.
It does NOT decide whether a step is taken back or finished (calls.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from taskd.state.moving import Moving
from taskd.state.replica import Replica
from taskd.worker.undo import Undo

MOVED = "parameters moved without an optimizer in the step that is given up, and no copy of them is"
UNFINISHED = "the step that is given up was left after an update, and what it would have changed then is not known"


class Reversal:
    """Of the step under way."""

    def __init__(self, replica: Replica, moving: Moving) -> None:
        self.copies = Undo(replica)
        self.torn_by = ""
        """Why the last step that was given up is torn."""
        self._replica = replica
        self._moving = moving

    def take_back(self, optimizers: Sequence[str]) -> str:
        """All stands again as the step found it, before these optimizers have stepped; or why it is torn."""
        self._clear_halves()
        if not self.copies.put_back(optimizers):
            return UNFINISHED
        return "" if self._moving.put_back() else MOVED

    def _clear_halves(self) -> None:
        """What a scaler and its optimizers say to each other within one step, and what it has not come to: done again,
        a scaler that has divided the gradients of this step would not divide those of the next attempt."""
        for item in self._replica.others.values():
            getattr(item, "_per_optimizer_states", {}).clear()
        for optimizer in self._replica.optimizers.values():
            for word in ("grad_scale", "found_inf"):
                vars(optimizer).pop(word, None)
