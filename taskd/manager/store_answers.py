"""Answers of the job's store that may be asked for again, so that no operation is applied twice.

A node's relay repeats an operation until it is answered. What changed something must not be done again then: its answer
is kept here until the relay says that it has it. Numbers count within one life of a relay; the lives that spoke last
are remembered.

It does NOT know what operations do, and it keeps no answers of those that change nothing: they are simply done again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from taskd.core import limits
from taskd.core.messages import StoreAnswer


@dataclass
class Life:
    """What is remembered of one life of a node's relay."""

    settled: int = 0
    applied: dict[int, StoreAnswer] = field(default_factory=dict)


class Answers:
    """Those of all lives, and what a file must be told of them."""

    def __init__(self) -> None:
        self.lives: OrderedDict[int, Life] = OrderedDict()
        self._applied: list[tuple[int, StoreAnswer]] = []
        self._settled: dict[int, int] = {}

    def load(self, life: int, answer: StoreAnswer) -> None:
        """Take up what an earlier life of the manager kept."""
        self._of(life).applied[answer.number] = answer

    def heard(self, life: int, settled: int) -> Life:
        """A relay speaks: what is kept of it. Answers below number `settled` are not needed any more."""
        known = self._of(life)
        if settled > known.settled:
            known.settled = settled
            old = [number for number in known.applied if number < settled]
            for number in old:
                del known.applied[number]
            if old:
                self._settled[life] = settled
        return known

    def keep(self, life: int, answer: StoreAnswer) -> None:
        """Something was changed, and this is the answer."""
        self.lives[life].applied[answer.number] = answer
        self._applied.append((life, answer))

    def take_changes(self) -> tuple[list[tuple[int, StoreAnswer]], dict[int, int]]:
        """Since the last call: the answers that were kept, and by life the number below which none is needed."""
        applied, settled = self._applied, self._settled
        self._applied, self._settled = [], {}
        return applied, settled

    def _of(self, life: int) -> Life:
        known = self.lives.get(life)
        if known is None:
            known = self.lives[life] = Life()
            if len(self.lives) > limits.MAX_STORE_LIVES:
                gone, _ = self.lives.popitem(last=False)
                self._settled[gone] = 2**63 - 1
        self.lives.move_to_end(life)
        return known
