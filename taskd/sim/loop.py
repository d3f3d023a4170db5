"""Virtual time: one heap of actions, and one clock that jumps from each action to the next.

Nothing waits, and no two actions run at the same time. So a job of minutes passes in a fraction of a second. The same
seed always gives the same order: actions of one instant run in the order in which they were planned. An action that may
be void when it is due has to check that itself. The loop does not know what it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[..., None]

KEPT_LINES = 240
"""How many of the last lines of the story are kept, for a failure's report."""


class Loop:
    """The clock, the planned actions, and the last lines of the story."""

    __slots__ = ("_heap", "_planned", "events", "now", "trace")

    def __init__(self) -> None:
        self.now = 0
        self.events = 0
        self.trace: deque[tuple[int, str, Any]] = deque(maxlen=KEPT_LINES)
        self._heap: list[tuple[int, int, Action, tuple[Any, ...]]] = []
        self._planned = 0

    def at(self, when_ns: int, action: Action, *arguments: Any) -> None:
        """Run the action at this time, or now if the time is past."""
        self._planned += 1
        heappush(self._heap, (max(when_ns, self.now), self._planned, action, arguments))

    def after(self, delay_ns: int, action: Action, *arguments: Any) -> None:
        """Run the action this long from now."""
        self._planned += 1
        heappush(self._heap, (self.now + delay_ns, self._planned, action, arguments))

    def run(self, until_ns: int, enough: Callable[[], bool] | None = None) -> bool:
        """Run the actions due up to this time. Return True as soon as `enough` holds (checked after every action)."""
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
        """Add one line to the story, for a failure's report. `what` is formatted only if it is printed."""
        self.trace.append((self.now, who, what))

    def story(self, lines: int) -> list[str]:
        """The last lines as text."""
        return [f"{at / 1e9:10.4f} s  {who:<12} {what}" for at, who, what in list(self.trace)[-lines:]]
