"""How often something may be tried. Alone, since the launcher and the manager, who try, count in the same way.

So many tries within a while, and less and less quickly one after the other. What fails all the time must not be tried
all the time, and what failed long ago says nothing of today. It has no clock: it is told the time.
"""

from __future__ import annotations

from collections import deque


class Budget:
    """At most `most` tries within any `window_ns`; from the third on, each waits twice as long as the one before."""

    def __init__(self, most: int, window_ns: int, pause_ns: int = 0) -> None:
        """`pause_ns`: how long the third try waits behind the second; the second one waits for nothing."""
        self._tries: deque[int] = deque(maxlen=most)
        self._window_ns, self._pause_ns = window_ns, pause_ns

    def take(self, now_ns: int) -> bool:
        """Try now, if that may be; whether it may."""
        if self.free_at(now_ns) > now_ns:
            return False
        self._tries.append(now_ns)
        return True

    def free_at(self, now_ns: int) -> int:
        """When the next try may be made: `now_ns`, or later."""
        while self._tries and now_ns - self._tries[0] >= self._window_ns:
            self._tries.popleft()
        if not self._tries:
            return now_ns
        pause_ns = self._pause_ns << (len(self._tries) - 2) if len(self._tries) > 1 else 0
        free = self._tries[-1] + pause_ns
        if len(self._tries) == self._tries.maxlen:
            free = max(free, self._tries[0] + self._window_ns)
        return max(free, now_ns)
