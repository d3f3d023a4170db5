"""Virtual time: one heap of actions, one clock that jumps from each to the next.

Nothing waits and nothing runs at the same time as anything else, so a whole job of minutes passes in a fraction of a
second and the same seed always gives the same order: actions of one instant run in the order in which they were
planned. An action that may be void by the time it is due checks that itself. The loop knows nothing of what it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[..., None]

KEPT_LINES = 240
"""How many of the last lines of the story a failure prints from."""


class Loop:
    """The clock, what is planned, and the last lines of what happened."""

    __slots__ = ("_heap", "_planned", "events", "now", "trace")

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        self.trace: deque[tuple[int, str, Any]] = deque(maxlen=KEPT_LINES)
        self._heap: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, when_ns: int, action: Action, *arguments: Any) -> None:
        """Run the action at this time; never in the past."""
        self._planned += 1
        heappush(self._heap, (max(when_ns, self.now), self._planned, action, arguments))

    def after(self, delay_ns: int, action: Action, *arguments: Any) -> None:
        """Run the action this long from now."""
        self._planned += 1
        heappush(self._heap, (self.now + delay_ns, self._planned, action, arguments))

    def run(self, until_ns: int, enough: Callable[[], bool] | None = None) -> bool:
        """Run what is due up to this time; True as soon as `enough` (asked after every action) holds."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            self.now, _, action, arguments = heappop(heap)
            self.events += 1
            action(*arguments)
            if enough is not None and enough():
                return True
        self.now = max(self.now, until_ns)
        return False

    def tell(self, who: str, what: Any) -> None:
        """One line of the story, kept for a failure's last lines. `what` is formatted only if it is printed."""
        self.trace.append((self.now, who, what))

    def story(self, lines: int) -> list[str]:
        """The last lines as text."""
        return [f"{at / 1e9:10.4f} s  {who:<12} {what}" for at, who, what in list(self.trace)[-lines:]]
