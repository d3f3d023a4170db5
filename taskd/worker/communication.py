"""The places in a step where this process communicates: inside an optimizer, after the last one, or between two steps.

Each place means something different for a step that is given up. An optimizer that communicates may be interrupted. A
step that communicates after its last optimizer ends there. Communication between two steps belongs to no step.
This is a module of its own because it only compares counts at these places. It does NOT know what is communicated.
"""

from __future__ import annotations

from collections.abc import Callable


class Communication:
    """The communication of one session."""

    def __init__(self, operations: Callable[[], int]) -> None:
        """`operations`: returns how many collectives this process has begun."""
        self._operations = operations
        self._before = 0  # the count when the current optimizer began
        self._then = 0  # the count when the last optimizer had stepped
        self._at_end: int | None = None  # the count at the end of the last step; None: not to be compared
        self._told = False

    def begin(self) -> bool:
        """Begin a step. Return whether this rank has communicated since the step before; this is reported once."""
        between = self._at_end is not None and self._at_end < self._operations() and not self._told
        self._told |= between
        return between

    def forget(self) -> None:
        """Ignore what is communicated until the next step: the loop's body does not cause it."""
        self._at_end = None

    def optimizer_begins(self) -> None:
        """Note that an optimizer is about to step."""
        self._before = self._operations()

    def optimizer_ended(self) -> bool:
        """Note that an optimizer has stepped. Return whether it has communicated."""
        self._then = self._operations()
        return self._then != self._before

    def end(self) -> bool:
        """End a step normally. Return whether it has communicated after its last optimizer."""
        self._at_end = self._operations()
        return self._at_end != self._then
