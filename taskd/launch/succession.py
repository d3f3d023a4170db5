"""The standby of a node, and its successor, which also imports the compiler if the node's workers need it.

A job that compiles its model needs a standby that has imported the compiler. The first standby cannot import it while
it serves: a rank that dies then would wait for the import. So a second process imports it in the background. That
process replaces the first one when it is ready and can be forked from. If it dies or has threads, the first one stays,
and a warning is logged once. This is a module of its own because the launcher is large enough. It does NOT know what is
imported, or why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from taskd import log
from taskd.launch.standby import DEATHS_MAX, Standby

COMPILER = "taskd.worker.compiling:prepare"
"""Only named here and not imported: this process does not need it."""
_logger = log.get(__name__)


class Succession:
    """The node's standbys. `current` serves; `tell` is called with each successor."""

    def __init__(self, first: Standby, tell: Callable[[Standby], None]) -> None:
        self.current = first
        self._tell = tell
        self._next: Standby | None = None
        self._wanted = False

    def want(self) -> None:
        """Start the successor if needed. Call this whenever ranks of this node are seen to use the compiler."""
        if self._wanted or not self.current.ready:
            return
        self._wanted = True
        self._next = self.current.successor(COMPILER)
        self._next.start()

    def sources(self) -> Mapping[int, Callable[[], None]]:
        """Descriptors to wait for, each with the function to call when it is readable."""
        found = {self.current.fd: self.current.tend}
        if self._next is not None:
            found[self._next.fd] = self._tend_next
        found.pop(-1, None)
        return found

    def close(self) -> None:
        """End both standbys."""
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
