"""Following rail orders in a training process: which rails carry, as the manager wants it, and the honest answer.

It runs in the link's thread and asks the adapters of this process' groups (taskd/comm/adapter.py); it never loads one.
A backend that takes no such order answers "unsupported" in its own words; nothing here ever reports more than was done.
It does NOT decide anything, and it does not wait for traffic to move: the manager looks at the counters for that.
"""

from __future__ import annotations

from taskd import log
from taskd.comm import adapter, cpu
from taskd.comm.adapter import Adapter, Switch
from taskd.core.messages import RailOrder, RailsFollowed
from taskd.core.words import cut

TRANSPORT = cpu.RAILS
"""The module that has rails, once this process uses them."""
NO_RAILS = f"{Switch.UNSUPPORTED.value}: {cpu.NO_RAIL}"
_logger = log.get(__name__)


def choices() -> dict[str, Adapter]:
    """Every rail of this process that can be chosen, and whom to ask for it."""
    return {name: one for one in adapter.loaded() for name in one.rails()}


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
            rails = choices()
            if order.out and not rails and self._expected:
                return None
            trouble = _apply(order, rails)
            if not trouble:
                self._done = order.term, order.number
                if order.out:
                    _logger.info("rails %s carry nothing from now on: %s", ", ".join(order.out), order.reason)
        number = order.number if trouble else self._done[1]
        return RailsFollowed(self._rank, incarnation, number, not trouble, cut(trouble))


def _apply(order: RailOrder, rails: dict[str, Adapter]) -> str:
    """Why it could not be done; empty: it was."""
    if order.out and not rails:
        answers = [one.switch_rail(order.out[0], False) for one in adapter.loaded()]
        return f"{answers[-1].outcome.value}: {answers[-1].words}"
    unknown = [name for name in order.out if name not in rails]
    if unknown:
        return f"there is no rail {unknown[0]} in this process; it has {', '.join(rails)}"
    for name, one in rails.items():
        answer = one.switch_rail(name, name not in order.out)
        if answer.outcome not in (Switch.ASKED, Switch.MOVED):
            return f"{answer.outcome.value}: {answer.words}"
    return ""
