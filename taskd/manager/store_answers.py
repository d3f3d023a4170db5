"""Answers of the job's store that may be asked for again, so that no operation is applied twice.

A node's relay repeats an operation until it is answered. A repeated operation that changes something must not be
applied again. So its answer is kept here until the relay reports that it has received it. Numbers count within one life
of a relay. Only the lives that spoke last are remembered.

It does NOT know what operations do. It keeps no answers of operations that change nothing: these are simply done again.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from taskd.core import limits
from taskd.core.messages import StoreAnswer


@dataclass
class Life:
    """The kept answers of one life of a node's relay."""

    settled: int = 0
    applied: dict[int, StoreAnswer] = field(default_factory=dict)


class Answers:
    """The answers of all lives, and the changes that the file must record."""

    def __init__(self) -> None:
        self.lives: OrderedDict[int, Life] = OrderedDict()
        self._applied: list[tuple[int, StoreAnswer]] = []
        self._settled: dict[int, int] = {}

    def load(self, life: int, answer: StoreAnswer) -> None:
        """Load an answer that an earlier manager of the job has kept."""
        self._of(life).applied[answer.number] = answer

    def heard(self, life: int, settled: int) -> Life:
        """Return what is kept of a relay that has just spoken. It needs no answers below number `settled` any more."""
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
        """Keep the answer of an operation that changed something."""
        self.lives[life].applied[answer.number] = answer
        self._applied.append((life, answer))

    def take_changes(self) -> tuple[list[tuple[int, StoreAnswer]], dict[int, int]]:
        """The changes since the last call: new answers, and for each life the number below which none is needed."""
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
