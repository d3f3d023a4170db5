"""When which part of its state a rank makes digests of, so that all ranks do so at the same update without a word.

A step must not feel the proof. So the state is a row of units, the row is cut into slices of some bytes, and one slice
is digested every so many updates. Nobody tells anybody when: a slice is due after update u if `every` divides u, and it
is slice u modulo their number. `every` is a power of two, and the number of slices is odd. From that follows:

- all slices get their turn, one after another, whatever `every` is, since the two have no common divisor;
- ranks that measured other times and chose another `every` still digest the same slice after the updates that both look
  at, so a slower rank makes proofs rarer and never wrong. Nobody has to agree on anything.

`Rhythm` chooses `every` from what proofs and steps take on this rank. It knows no clock: durations come from outside.
Not here: what a unit is (state/digests.py), and who compares (proofs.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from statistics import median

from taskd.core import limits


def slices(sizes: Sequence[int], most: int = limits.PROOF_SLICE_BYTES) -> list[tuple[int, int]]:
    """Where each slice begins and ends, in units of these sizes. Their number is odd; one may be empty."""
    found: list[tuple[int, int]] = []
    begin = held = 0
    for at, size in enumerate(sizes):
        if at > begin and held + size > most:
            found.append((begin, at))
            begin, held = at, 0
        held += size
    found.append((begin, len(sizes)))
    if len(found) % 2 == 0:
        found.append((len(sizes), len(sizes)))
    return found


def due(updates: int, every: int, count: int) -> int:
    """Which of `count` slices is digested after this update; -1: none."""
    assert count % 2 and every & (every - 1) == 0
    return updates % count if every and updates > 0 and updates % every == 0 else -1


def following(updates: int, every: int) -> int:
    """After which update the next slice is due; while that is not known, the next one."""
    return updates + every - updates % every if every else updates + 1


class Rhythm:
    """How often one rank digests a slice."""

    def __init__(self, ranks: int = 1) -> None:
        """`ranks`: of the whole job. The manager hears the proofs of all of them."""
        self.every = 0
        """In updates, a power of two; 0: not known yet, no slice is due."""
        self._least_ns = limits.PROOF_PERIOD_NS * -(-max(ranks, 1) // limits.PROOF_RANKS)
        self._steps: deque[int] = deque(maxlen=limits.PROOF_MEASURES)
        self._costs: deque[int] = deque(maxlen=limits.PROOF_MEASURES)
        self._costs.append(limits.PROOF_FIRST_COST_NS)

    def step_took(self, duration_ns: int) -> None:
        """From one update to the next, on average since the last time."""
        self._steps.append(max(duration_ns, 1))
        if len(self._steps) == limits.PROOF_MEASURES and not self.every:
            self._choose()

    def proof_took(self, duration_ns: int) -> None:
        """The digests of one slice."""
        if self._costs[0] == limits.PROOF_FIRST_COST_NS:
            self._costs.clear()
        self._costs.append(max(duration_ns, 1))
        self._choose()

    def _choose(self) -> None:
        if len(self._steps) < limits.PROOF_MEASURES:
            return
        step_ns = median(self._steps)
        wanted = max(median(self._costs) * limits.PROOF_SHARE, self._least_ns) / step_ns
        # A rank on the edge of a power of two would go to and fro; only what is clearly too often or too seldom counts.
        if not self.every or wanted > self.every or wanted * 4 < self.every:
            self.every = min(1 << max(ceil(wanted) - 1, 0).bit_length(), limits.PROOF_SELDOM)
