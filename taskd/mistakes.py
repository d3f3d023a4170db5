"""Errors of taskd's own in loops that have to go on: each costs what it was about, and nothing else.

A loop that serves others (an agent, a store, a keeper) takes them along when it ends. So an error of ours in one event,
message or process is said, and the next one is served: what was to be done is repeated or asked for again. One that
comes all the time ends the loop all the same, or it would spin. What a script, a peer or the machine does wrong is no
mistake of ours: that is expected where it may come. It repairs nothing.
"""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager
from types import TracebackType

from taskd.core.budget import Budget
from taskd.core.limits import SECOND
from taskd.core.words import cut

MOST = 20
WINDOW_NS = 10 * SECOND
"""So many are survived within this."""


class Mistakes:
    """Of one loop. `with mistakes.about("..."):` stands around each thing that it does."""

    def __init__(self, logger: logging.Logger, goes_on: str) -> None:
        """`goes_on`: what does in spite of them, as in `this node goes on without it`."""
        self._logger, self._goes_on = logger, goes_on
        self._budget = Budget(MOST, WINDOW_NS)

    def about(self, what: object) -> AbstractContextManager[None]:
        """What is about to be done."""
        return _About(self, what)

    def survives(self, what: object, error: Exception) -> bool:
        """Say this one; whether the loop goes on."""
        if not self._budget.take(time.monotonic_ns()):
            return False
        said = cut(what if isinstance(what, str) else repr(what))
        self._logger.error("%s failed: a mistake of taskd's; %s", said, self._goes_on, exc_info=error)
        return True


class _About(AbstractContextManager[None]):
    """One thing that is done."""

    __slots__ = ("_mistakes", "_what")

    def __init__(self, mistakes: Mistakes, what: object) -> None:
        self._mistakes, self._what = mistakes, what

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return isinstance(error, Exception) and self._mistakes.survives(self._what, error)
