"""What is known of a training's steps by now: which calls they are made of, and what else they do.

Learned from steps that were seen to their end. It tells whether a step that is left after an update can be finished by
calls that are made in its place, and whether an optimizer's step may have to be undone. It goes into the record, so
that whoever goes on in this rank's place need not learn anything again: what is not known of a step costs a copy of all
that an optimizer changes, just when the others wait. It calls nothing and keeps no copies (calls.py, undo.py).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

MAX_PATTERNS = 16
"""Kinds of steps (with and without scheduler, say) that are remembered; the oldest is forgotten."""
Calls = tuple[str, ...]
"""The names of registered objects, in the order in which a step has called them."""


@dataclass(slots=True)
class Habits:
    """Of one session."""

    patterns: dict[Calls, None] = field(default_factory=dict)
    unseen: bool = False
    """A step changes things without a call that could be made in its place: objects, attributes of modules."""
    late: bool = False
    """Steps change attributes of modules after their backward has begun."""
    ends_late: bool = False
    """Steps call something after their last optimizer at which a step that is given up ends."""
    moves_on: bool = False
    """Steps draw, or write into buffers or objects of this rank's own, after their forward has ended."""
    moves_between: bool = False
    """So does the loop between two of them."""
    gated: bool = False
    """No rank updates its part of the model before all have come so far (gate.py)."""
    called: set[str] = field(default_factory=set)
    """Schedulers and the like that were called, in a step or elsewhere."""
    with_arguments: set[str] = field(default_factory=set)
    """And those that nobody else could call."""
    closures: set[str] = field(default_factory=set)
    """Optimizers that call for gradients while they step: in a step that is given up, for ones that do not count."""
    talkers: set[str] = field(default_factory=set)
    """Optimizers that communicate while they step, and so may be left in the middle of it."""

    def pack(self) -> dict[str, Any]:
        """As they go into the record."""
        return {
            "steps": [*self.patterns],
            "ends_late": self.ends_late,
            "unseen": self.unseen,
            "late": self.late,
            "moves_on": self.moves_on,
            "moves_between": self.moves_between,
            "gated": self.gated,
            "called": self.called,
            "with_arguments": self.with_arguments,
            "closures": self.closures,
            "talkers": self.talkers,
        }

    def inherit(self, packed: dict[str, Any]) -> None:
        """Go on with what this rank knew in its life before."""
        self.patterns = dict.fromkeys(packed["steps"])
        self.ends_late |= packed["ends_late"]
        self.unseen |= packed["unseen"]
        self.late |= packed["late"]
        self.moves_on |= packed["moves_on"]
        self.moves_between |= packed["moves_between"]
        self.gated |= packed["gated"]
        self.called |= packed["called"]
        self.with_arguments |= packed["with_arguments"]
        self.closures |= packed["closures"]
        self.talkers |= packed["talkers"]

    def remember(self, calls: Calls) -> None:
        """A step was made of these."""
        self.patterns.pop(calls, None)
        self.patterns[calls] = None
        if len(self.patterns) > MAX_PATTERNS:
            del self.patterns[next(iter(self.patterns))]

    def rest(self, so_far: Calls, optimizers: Container[str], followed: set[str]) -> Calls | None:
        """What is missing of a step that was left after these calls, if it can be made up for; else None. `followed`:
        all whose calls would be noticed."""
        rests = self._rests(so_far)
        if len(rests) != 1 or self.unseen or followed - self.called:
            return None
        rest = rests.pop()
        return None if any(name in optimizers or name in self.with_arguments for name in rest) else rest

    def may_be_undone(self, so_far: Calls, optimizers: Container[str], followed: set[str]) -> bool:
        """Whether the step could be given up, once the last one of these begins, where it cannot be finished."""
        rests = self._rests(so_far)
        if not rests or so_far[-1] in self.closures or so_far[-1] in self.talkers:
            return True
        goes_on = any(name in optimizers for rest in rests for name in rest)
        return goes_on or (self.ends_late and self.rest(so_far, optimizers, followed) is None)

    def _rests(self, so_far: Calls) -> set[Calls]:
        """How steps that began like this went on."""
        return {pattern[len(so_far) :] for pattern in self.patterns if pattern[: len(so_far)] == so_far}
