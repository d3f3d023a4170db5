"""Follows the manager's rail orders in a training process: it switches rails on or off, and answers honestly.

It runs in the link's thread and asks the adapters of this process' groups (taskd/comm/adapter.py). It never loads an
adapter. A backend that takes no such order answers "unsupported" in its own words. What can go wrong, and what follows:

- *The rails are not there yet*: nothing is answered, and the order comes again.
- *A backend takes a switch, reports success and does nothing* (HCCL may): if a switch can be proved by counting bytes,
  the answer waits for this proof; a rail that carries as before is a `no-op`, and the manager undoes the order.
- *Too few bytes are sent to prove the switch*: after a while the answer is yes, and says so; rails over taskd's own
  transport prove the switch to the manager by their counters.
- *This process has no rail of that name*, though other processes of its node have: the rail carries nothing here, as
  ordered.

Invariant: this module never reports more than was done. It does NOT decide anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from taskd import log
from taskd.comm import adapter, cpu
from taskd.comm.adapter import Adapter, Switch, Switched
from taskd.core.messages import RailOrder, RailsFollowed
from taskd.core.words import cut

NO_RAILS = f"{Switch.UNSUPPORTED.value}: {cpu.NO_RAIL}"
PROOF_SECONDS = 5.0
"""How long to wait for the bytes that prove a switch: half the time that the manager gives ranks to follow an order."""
_logger = log.get(__name__)


def choices() -> dict[str, Adapter]:
    """Return every rail of this process that can be switched, with its adapter."""
    return {name: one for one in adapter.loaded() for name in one.rails()}


class RailFollower:
    """Follows the rail orders of one training process. It keeps the last order: a repeated order is only answered."""

    def __init__(self, rank: int, expected: bool, now: Callable[[], float] = time.monotonic) -> None:
        """`expected`: this process will have rails, though perhaps not before its first group."""
        self._rank = rank
        self._expected = expected
        self._done: tuple[int, int] = (0, 0)  # term and number of the last order that was followed
        self._taken: tuple[int, int] = (0, 0)  # the same of the last order that was carried out but is not proved yet
        self._until = 0.0
        self._proofs: list[Callable[[], Switched]] = []
        self._words: list[str] = []  # what is known about the switches of the last order
        self._now = now

    def follow(self, order: RailOrder, incarnation: int) -> RailsFollowed | None:
        """Carry out the order. A repeated order is only answered, an older one with the newer number.

        None: the rails are not there yet, or the switch is not proved yet. Without an answer the order comes again.
        """
        trouble, this = "", (order.term, order.number)
        if this > self._done:
            if this != self._taken:
                rails = choices()
                if order.out and not rails and self._expected:
                    return None
                trouble, self._words, self._proofs = _apply(order, rails)
                self._taken, self._until = this, self._now() + PROOF_SECONDS
            trouble = trouble or self._no_op()
            if not trouble and self._proofs:
                return None
            if trouble:
                self._taken, self._words = (0, 0), []  # if the order comes again, it is tried again
            else:
                self._done = this
                if order.out:
                    _logger.info("rails %s carry nothing from now on: %s", ", ".join(order.out), order.reason)
        number = order.number if trouble else self._done[1]
        return RailsFollowed(self._rank, incarnation, number, not trouble, cut(trouble or "; ".join(self._words)))

    def _no_op(self) -> str:
        """Check the switches that are not proved yet. Return words about one that reported success and did nothing."""
        found = [(proof, proof()) for proof in self._proofs]
        for _, answer in found:
            if answer.outcome is Switch.NO_OP:
                self._proofs = []
                return f"{answer.outcome.value}: success was reported, but {answer.words}"
        self._words += [
            f"{answer.outcome.value}: {answer.words}" for _, answer in found if answer.outcome is Switch.MOVED
        ]
        self._proofs = [proof for proof, answer in found if answer.outcome is Switch.ASKED]
        if self._proofs and self._now() >= self._until:
            self._words += [f"{Switch.ASKED.value}: within {PROOF_SECONDS:g} s too little was sent to prove it"]
            self._proofs = []
        return ""


def _apply(order: RailOrder, rails: dict[str, Adapter]) -> tuple[str, list[str], list[Callable[[], Switched]]]:
    """Return why the order could not be carried out (empty: it was), what is known about it, and the open proofs."""
    if order.out and not rails:
        answers = [one.switch_rail(order.out[0], False) for one in adapter.loaded()]
        return f"{answers[-1].outcome.value}: {answers[-1].words}", [], []
    trouble, words, proofs = "", [], []
    for name, one in rails.items():
        answer = one.switch_rail(name, name not in order.out)
        if answer.outcome not in (Switch.ASKED, Switch.MOVED):
            trouble = trouble or f"{answer.outcome.value}: {answer.words}"
        elif answer.proof is not None:
            proofs.append(answer.proof)
        elif answer.words:
            words.append(f"{answer.outcome.value}: {answer.words}")
    return trouble, words, [] if trouble else proofs
