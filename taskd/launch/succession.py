"""The standby of a node, and the one that follows it once more is known of what the node's workers need.

A job that compiles its model wants a standby that has imported the compiler. The first one cannot do so while it
serves: a rank that dies then would wait for it. So another process does, in the background, and takes the place of the
first when it is ready and can be forked from. If it dies or has threads, the first one stays, and that is said once.
Alone, since the launcher has enough to do. It does NOT know what is imported, or why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taskd import log
from taskd.launch.standby import DEATHS_MAX, Standby

COMPILER = "taskd.worker.compiling:prepare"
"""Named here and not imported: this process needs none of it."""
_logger = log.get(__name__)


class Succession:
    """`current` serves; `tell` is told each that follows it."""

    def __init__(self, first: Standby, tell: Callable[[Standby], None]) -> None:
        self.current = first
        self._tell = tell
        self._next: Standby | None = None
        self._wanted = False

    def want(self) -> None:
        """Ranks of this node use the compiler. To be called as often as that is seen."""
        if self._wanted or not self.current.ready:
            return
        self._wanted = True
        self._next = self.current.successor(COMPILER)
        self._next.start()

    def sources(self) -> Mapping[int, Callable[[], None]]:
        """Descriptors to wait for, and what to call when one is readable."""
        found = {self.current.fd: self.current.tend}
        if self._next is not None:
            found[self._next.fd] = self._tend_next
        found.pop(-1, None)
        return found

    def close(self) -> None:
        """End both."""
        for standby in filter(None, (self._next, self.current)):
            standby.close()
        self._next = None

    def _tend_next(self) -> None:
        follower = self._next
        assert follower is not None
        follower.tend()
        if follower.ready and follower.threads == 1:
            _logger.info("this node's standby has the compiler imported by now")
            follower.deaths_max = DEATHS_MAX
            former, self.current, self._next = self.current, follower, None
            self._tell(follower)
            former.close()
        elif follower.ready or follower.fd < 0:
            why = f"it has {follower.threads} threads" if follower.ready else "it has ended"
            _logger.warning("this node's standby goes on without the compiler, which a newcomer then imports: %s", why)
            follower.close()
            self._next = None
