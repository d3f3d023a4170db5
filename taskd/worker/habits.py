"""The habits of a training's steps, as known so far: which calls the steps make, and what else they do.

They are learned from steps that ran to their end. They tell whether a step that was left after an update can be
finished by making its missing calls. They also tell whether an optimizer's step may have to be undone. They go into the
record, so that a newcomer need not learn them again. Without them it would copy everything that an optimizer changes,
just when the other ranks wait. This module calls nothing and keeps no copies (calls.py, undo.py).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

MAX_PATTERNS = 16
"""How many kinds of steps are remembered (for example with and without scheduler); the oldest is forgotten."""
Calls = tuple[str, ...]
"""The names of registered objects, in the order in which a step called them."""


@dataclass(slots=True)
class Habits:
    """The habits of one session."""

    patterns: dict[Calls, None] = field(default_factory=dict)
    unseen: bool = False
    """A step changes objects or attributes of modules without a call that could be made in its place."""
    late: bool = False
    """Steps change attributes of modules after their backward has begun."""
    ends_late: bool = False
    """After their last optimizer, steps make a call at which a step that is given up ends."""
    moves_on: bool = False
    """Steps draw, or write into this rank's own buffers or objects, after their forward has ended."""
    moves_between: bool = False
    """The loop does the same between two steps."""
    asked: bool = False
    """All ranks have told each other whether there is a gate. A newcomer must not ask again in its next loop."""
    gated: bool = False
    """No rank updates its part of the model before all ranks have reached the gate (gate.py)."""
    called: set[str] = field(default_factory=set)
    """Schedulers and similar objects that were called, in a step or elsewhere."""
    with_arguments: set[str] = field(default_factory=set)
    """Those of them that were called with arguments, so taskd cannot make the call itself."""
    closures: set[str] = field(default_factory=set)
    """Optimizers that compute gradients while they step. In a step that is given up these gradients are worthless."""
    talkers: set[str] = field(default_factory=set)
    """Optimizers that communicate while they step, so their step may be interrupted."""

    def pack(self) -> dict[str, Any]:
        """Return the habits as they go into the record."""
        return {
            "steps": [*self.patterns],
            "ends_late": self.ends_late,
            "unseen": self.unseen,
            "late": self.late,
            "moves_on": self.moves_on,
            "moves_between": self.moves_between,
            "asked": self.asked,
            "gated": self.gated,
            "called": self.called,
            "with_arguments": self.with_arguments,
            "closures": self.closures,
            "talkers": self.talkers,
        }

    def inherit(self, packed: dict[str, Any]) -> None:
        """Go on with the habits that this rank's life before knew."""
        self.patterns = dict.fromkeys(packed["steps"])
        self.ends_late |= packed["ends_late"]
        self.unseen |= packed["unseen"]
        self.late |= packed["late"]
        self.moves_on |= packed["moves_on"]
        self.moves_between |= packed["moves_between"]
        self.asked |= packed["asked"]
        self.gated |= packed["gated"]
        self.called |= packed["called"]
        self.with_arguments |= packed["with_arguments"]
        self.closures |= packed["closures"]
        self.talkers |= packed["talkers"]

    def remember(self, calls: Calls) -> None:
        """Remember that a step made these calls."""
        self.patterns.pop(calls, None)
        self.patterns[calls] = None
        if len(self.patterns) > MAX_PATTERNS:
            del self.patterns[next(iter(self.patterns))]

    def rest(self, so_far: Calls, optimizers: Container[str], followed: set[str]) -> Calls | None:
        """Return the missing calls of a step that was left after these calls; None: they are unknown or cannot be made.
        `followed`: all objects whose calls would be noticed."""
        rests = self._rests(so_far)
        if len(rests) != 1 or self.unseen or followed - self.called:
            return None
        rest = rests.pop()
        return None if any(name in optimizers or name in self.with_arguments for name in rest) else rest

    def may_be_undone(self, so_far: Calls, optimizers: Container[str], followed: set[str]) -> bool:
        """Whether the step may be given up where it cannot be finished, once the last of these calls begins."""
        rests = self._rests(so_far)
        if not rests or so_far[-1] in self.closures or so_far[-1] in self.talkers:
            return True
        goes_on = any(name in optimizers for rest in rests for name in rest)
        return goes_on or (self.ends_late and self.rest(so_far, optimizers, followed) is None)

    def _rests(self, so_far: Calls) -> set[Calls]:
        """Return how earlier steps with the same beginning went on."""
        return {pattern[len(so_far) :] for pattern in self.patterns if pattern[: len(so_far)] == so_far}
