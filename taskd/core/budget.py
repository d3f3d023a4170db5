"""A budget of tries: how often something may be tried. A module of its own: launcher and manager count in the same way.

The number of tries within a time window is bounded, and the pauses between them grow. An action that always fails must
not be tried all the time, and a failure from long ago says nothing about today. It has no clock: it is told the time.
"""

from __future__ import annotations

from collections import deque


class Budget:
    """At most `most` tries within any `window_ns`; from the third on, each waits twice as long as the one before."""

    def __init__(self, most: int, window_ns: int, pause_ns: int = 0) -> None:
        """`pause_ns`: how long the third try waits after the second. The second one does not wait."""
        self._tries: deque[int] = deque(maxlen=most)
        self._window_ns, self._pause_ns = window_ns, pause_ns

    def take(self, now_ns: int) -> bool:
        """Use up one try, if one is allowed now. Return whether it is."""
        if self.free_at(now_ns) > now_ns:
            return False
        self._tries.append(now_ns)
        return True

    def free_at(self, now_ns: int) -> int:
        """Return when the next try is allowed: `now_ns`, or later."""
        while self._tries and now_ns - self._tries[0] >= self._window_ns:
            self._tries.popleft()
        if not self._tries:
            return now_ns
        pause_ns = self._pause_ns << (len(self._tries) - 2) if len(self._tries) > 1 else 0
        free = self._tries[-1] + pause_ns
        if len(self._tries) == self._tries.maxlen:
            free = max(free, self._tries[0] + self._window_ns)
        return max(free, now_ns)
