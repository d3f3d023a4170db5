"""Where in a step this process communicates: inside of an optimizer, behind the last one, or between two steps.

Each of these says something else of a step that is given up: an optimizer that communicates may be left in the middle
of it, a step that does behind its last one ends there, and what is communicated between two steps belongs to none.
Alone, since it is nothing but counts, compared at these places. It does NOT know what is communicated.
"""

from __future__ import annotations

from collections.abc import Callable


class Communication:
    """Of one session."""

    def __init__(self, operations: Callable[[], int]) -> None:
        """`operations`: how many this process has begun so far."""
        self._operations = operations
        self._before = 0  # when the optimizer at work began
        self._then = 0  # when the last optimizer had stepped
        self._at_end: int | None = None  # of the last step; None: that tells nothing
        self._told = False

    def begin(self) -> bool:
        """A step begins. Whether something was communicated since the one before, which is said once."""
        between = self._at_end is not None and self._at_end < self._operations() and not self._told
        self._told |= between
        return between

    def forget(self) -> None:
        """What is communicated until the next step is no doing of the loop's body."""
        self._at_end = None

    def optimizer_begins(self) -> None:
        """An optimizer is about to step."""
        self._before = self._operations()

    def optimizer_ended(self) -> bool:
        """It has stepped. Whether it has communicated."""
        self._then = self._operations()
        return self._then != self._before

    def end(self) -> bool:
        """The step ended as it should. Whether something was communicated behind its last optimizer."""
        self._at_end = self._operations()
        return self._at_end != self._then
