"""Following rail orders in a training process: which rails carry, as the manager wants it, and the honest answer.

It runs in the link's thread and never imports a transport: what has loaded none has no rail to choose, and says so. A
backend that takes no such order answers "unsupported" in its own words; nothing here ever reports more than was done.
It does NOT decide anything, and it does not wait for traffic to move: the manager looks at the counters for that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Protocol

from taskd import log
from taskd.core.messages import RailOrder, RailsFollowed
from taskd.core.words import cut
from taskd.errors import TaskdError

TRANSPORT = "taskd.comm.rail"
"""The module that offers `states()` and `set_in_use(name, in_use)` once this process uses rails."""
NO_RAILS = "unsupported: this process has no rail to choose, its groups run over another backend"
_logger = log.get(__name__)


class Rails(Protocol):
    """What this file asks of a transport."""

    def states(self) -> Iterable[str]:
        """The names of the rails of this process."""

    def set_in_use(self, name: str, in_use: bool) -> None:
        """A rail carries nothing new, or may carry again. Raises where that cannot be."""


def transport() -> Rails | None:
    """The transport that this process has loaded; None: it has none."""
    found: Any = sys.modules.get(TRANSPORT)
    return found if found is not None and hasattr(found, "set_in_use") else None


class RailFollower:
    """One per training process. Keeps the last order, so that a repetition is answered and not done again."""

    def __init__(self, rank: int, expected: bool) -> None:
        """`expected`: this process will have rails, though perhaps not before its first group."""
        self._rank = rank
        self._expected = expected
        self._done: tuple[int, int] = (0, 0)  # term and number of the last order that was followed

    def follow(self, order: RailOrder, incarnation: int) -> RailsFollowed | None:
        """Do what the order says; a repeated one is only answered, an older one with the newer number.

        None: the rails are not there yet. Saying nothing brings the order again, and then they may be.
        """
        trouble = ""
        if (order.term, order.number) > self._done:
            rails = transport()
            names = list(rails.states()) if rails is not None else []
            if order.out and not names and self._expected:
                return None
            trouble = _apply(order, rails, names)
            if not trouble:
                self._done = order.term, order.number
                if order.out:
                    _logger.info("rails %s carry nothing from now on: %s", ", ".join(order.out), order.reason)
        number = order.number if trouble else self._done[1]
        return RailsFollowed(self._rank, incarnation, number, not trouble, cut(trouble))


def _apply(order: RailOrder, rails: Rails | None, names: list[str]) -> str:
    """Why it could not be done; empty: it was."""
    if rails is None or not names:
        return NO_RAILS if order.out else ""
    unknown = [name for name in order.out if name not in names]
    if unknown:
        return f"there is no rail {unknown[0]} in this process; it has {', '.join(names)}"
    try:
        for name in names:
            rails.set_in_use(name, name not in order.out)
    except (RuntimeError, ValueError, OSError, TaskdError) as error:
        return f"{type(error).__name__}: {error}"
    return ""
