"""Takes back a step that was given up: its optimizers' steps, changed parameters, and the notes of a scaler.

Optimizers are undone with the copies that were made before they stepped (undo.py). Parameters that changed without an
optimizer are undone with the copies of state/moving.py. If a copy is missing, the step is torn, and the reason is told.
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
    """The reversal of the current step."""

    def __init__(self, replica: Replica, moving: Moving) -> None:
        self.copies = Undo(replica)
        self.torn_by = ""
        """Why the last step that was given up is torn."""
        self._replica = replica
        self._moving = moving

    def take_back(self, optimizers: Sequence[str]) -> str:
        """Put everything back as it was before these optimizers stepped. Return why the step is torn, or nothing."""
        self._clear_halves()
        if not self.copies.put_back(optimizers):
            return UNFINISHED
        return "" if self._moving.put_back() else MOVED

    def _clear_halves(self) -> None:
        """Clear what a scaler and its optimizers keep for one step. Otherwise a scaler that has divided the gradients
        of this attempt would not divide those of the next attempt."""
        for item in self._replica.others.values():
            getattr(item, "_per_optimizer_states", {}).clear()
        for optimizer in self._replica.optimizers.values():
            for word in ("grad_scale", "found_inf"):
                vars(optimizer).pop(word, None)
