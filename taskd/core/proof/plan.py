"""The plan of the digests: which part of its state a rank digests after which update. All ranks agree without messages.

The proof must not slow a step. So the state is a row of units, the row is cut into slices of limited size, and one
slice is digested every `every` updates. A slice is due after update u if `every` divides u. It is slice u modulo the
number of slices. `every` is a power of two, and the number of slices is odd. From that follows:

- all slices get their turn, one after another, for any `every`, since the two numbers have no common divisor;
- ranks that measured other times may choose another `every`. After an update at which two ranks both digest, they still
  digest the same slice. So a slower rank makes proofs rarer but never wrong, and the ranks need no agreement.

`Rhythm` chooses `every` from the time that proofs and steps take on this rank. It reads no clock: its caller passes the
durations. Not here: what a unit is (state/digests.py), and the comparison (proofs.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import ceil
from statistics import median

from taskd.core import limits


def slices(sizes: Sequence[int], most: int = limits.PROOF_SLICE_BYTES) -> list[tuple[int, int]]:
    """Where each slice begins and ends, in units of these sizes. The number of slices is odd; one may be empty."""
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
    """Which of `count` slices is digested after this update. -1: none."""
    assert count % 2 and every & (every - 1) == 0
    return updates % count if every and updates > 0 and updates % every == 0 else -1


def following(updates: int, every: int) -> int:
    """After which update the next slice is due. While `every` is not known: the next update."""
    return updates + every - updates % every if every else updates + 1


class Rhythm:
    """How often one rank digests a slice."""

    def __init__(self, ranks: int = 1) -> None:
        """`ranks`: the number of ranks of the whole job. The manager gets the proofs of all of them."""
        self.every = 0
        """In updates, a power of two. 0: not known yet, no slice is due."""
        self._least_ns = limits.PROOF_PERIOD_NS * -(-max(ranks, 1) // limits.PROOF_RANKS)
        self._steps: deque[int] = deque(maxlen=limits.PROOF_MEASURES)
        self._costs: deque[int] = deque(maxlen=limits.PROOF_MEASURES)
        self._costs.append(limits.PROOF_FIRST_COST_NS)

    def step_took(self, duration_ns: int) -> None:
        """Take the time from one update to the next, averaged since the last call."""
        self._steps.append(max(duration_ns, 1))
        if len(self._steps) == limits.PROOF_MEASURES and not self.every:
            self._choose()

    def proof_took(self, duration_ns: int) -> None:
        """Take the time that the digests of one slice took."""
        if self._costs[0] == limits.PROOF_FIRST_COST_NS:
            self._costs.clear()
        self._costs.append(max(duration_ns, 1))
        self._choose()

    def _choose(self) -> None:
        if len(self._steps) < limits.PROOF_MEASURES:
            return
        step_ns = median(self._steps)
        wanted = max(median(self._costs) * limits.PROOF_SHARE, self._least_ns) / step_ns
        # A rank on the edge of a power of two would switch to and fro, so only a clear difference counts.
        if not self.every or wanted > self.every or wanted * 4 < self.every:
            self.every = min(1 << max(ceil(wanted) - 1, 0).bit_length(), limits.PROOF_SELDOM)
