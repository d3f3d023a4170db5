"""Handles taskd's own bugs in loops that must go on: each error costs only the item that it happened in.

If a loop that serves others (an agent, a store, a keeper) ends, the others fail, too. So an error of taskd in one
event, message or connection is logged, and the next item is served. The failed item is repeated or asked for again. A
connection is closed by the code that serves it: what is left in it would only raise again. Errors that come all the
time do end the loop, else it would spin. An error of a script, a peer or the machine is no bug of taskd: the code that
may meet it handles it. This module repairs nothing.
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
"""A loop survives MOST errors within this time."""


class Mistakes:
    """The errors of one loop. Put `with mistakes.about("..."):` around each thing that the loop does."""

    def __init__(self, logger: logging.Logger, goes_on: str) -> None:
        """`goes_on`: a sentence about what goes on after an error, such as `this node goes on without it`."""
        self._logger, self._goes_on = logger, goes_on
        self._budget = Budget(MOST, WINDOW_NS)

    def about(self, what: object) -> AbstractContextManager[None]:
        """A context for doing this; it catches taskd's errors."""
        return _About(self, what)

    def survives(self, what: object, error: Exception) -> bool:
        """Log this error; returns whether the loop goes on."""
        if not self._budget.take(time.monotonic_ns()):
            return False
        said = cut(what if isinstance(what, str) else repr(what))
        self._logger.error("%s failed: a mistake of taskd's; %s", said, self._goes_on, exc_info=error)
        return True


class _About(AbstractContextManager[None]):
    """The context for one thing that a loop does."""

    __slots__ = ("_mistakes", "_what")

    def __init__(self, mistakes: Mistakes, what: object) -> None:
        self._mistakes, self._what = mistakes, what

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return isinstance(error, Exception) and self._mistakes.survives(self._what, error)
