"""Following rail orders in a training process: which rails carry, as the manager wants it, and the honest answer.

It runs in the link's thread and asks the adapters of this process' groups (taskd/comm/adapter.py); it never loads one.
A backend that takes no such order answers "unsupported" in its own words. What can go wrong, and what follows:

- *The rails are not there yet*: nothing is answered, and the order comes again.
- *A backend takes a switch, reports success and does nothing* (HCCL may): where it can prove a switch by bytes, nothing
  is answered until they have; a rail that carries as before is a `no-op`, and the manager undoes the order.
- *Nothing is sent that would prove it*: the answer is yes after a while, and says so; rails over taskd's own transport
  prove themselves to the manager, by their counters.
- *This process has no rail of that name*, though others of its node have: it carries nothing here, as ordered.

Invariant: nothing here ever reports more than was done. It does NOT decide anything.
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
"""So long the bytes of a switch are awaited: half of what the manager gives ranks to follow an order."""
_logger = log.get(__name__)


def choices() -> dict[str, Adapter]:
    """Every rail of this process that can be chosen, and whom to ask for it."""
    return {name: one for one in adapter.loaded() for name in one.rails()}


class RailFollower:
    """One per training process. Keeps the last order, so that a repetition is answered and not done again."""

    def __init__(self, rank: int, expected: bool, now: Callable[[], float] = time.monotonic) -> None:
        """`expected`: this process will have rails, though perhaps not before its first group."""
        self._rank = rank
        self._expected = expected
        self._done: tuple[int, int] = (0, 0)  # term and number of the last order that was followed
        self._taken: tuple[int, int] = (0, 0)  # and of the last one that was carried out, but has to prove itself
        self._until = 0.0
        self._proofs: list[Callable[[], Switched]] = []
        self._words: list[str] = []  # what is known of the last order's switches
        self._now = now

    def follow(self, order: RailOrder, incarnation: int) -> RailsFollowed | None:
        """Do what the order says; a repeated one is only answered, an older one with the newer number.

        None: the rails are not there yet, or have yet to prove it. Saying nothing brings the order again.
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
                self._taken, self._words = (0, 0), []  # told again, it is tried again
            else:
                self._done = this
                if order.out:
                    _logger.info("rails %s carry nothing from now on: %s", ", ".join(order.out), order.reason)
        number = order.number if trouble else self._done[1]
        return RailsFollowed(self._rank, incarnation, number, not trouble, cut(trouble or "; ".join(self._words)))

    def _no_op(self) -> str:
        """Look at what has yet to prove itself. Gives the words of what reported success and did nothing."""
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
    """Why it could not be done (empty: it was), what is known of it, and what has yet to prove that it was."""
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
