"""The numbers that a simulated job trains. A module of its own: ranks and checkers need the same numbers and no more.

The model is one 64-bit hash instead of parameters. After every update the hash is a mix of the previous hash, the step,
and the contribution of each rank in the collective. A rank's contribution depends on its own model. So a rank that is
behind, missing or there twice gives another hash. The contributions are weighted sums, so the hash that a job without
faults has after n updates is known without running it: that is the `Oracle`. The checkers compare with the oracle, not
with another rank, which may have the same mistake.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
FRESH = 0x7A5C0FFEE0DD1CE5
"""Every rank's model before the first update: the same initial parameters everywhere."""


def mix(value: int) -> int:
    """A good 64-bit hash of an integer (the finalizer of splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def weight(rank: int) -> int:
    """A rank's weight in the sum: odd, and different for every rank, so that no rank can stand in for another."""
    return 2 * mix(rank) | 1


def updated(model: int, step: int, weights: int) -> int:
    """The model after update `step`, for members that all held `model` and whose weights sum to `weights`."""
    gradient = mix(model ^ mix(step))
    return mix((model + weights * gradient + step) & MASK)


class Oracle:
    """The model that a run without faults would hold after each update."""

    __slots__ = ("_models", "_weights")

    def __init__(self, world_size: int) -> None:
        self._weights = sum(weight(rank) for rank in range(world_size)) & MASK
        self._models = [FRESH]

    def model(self, updates: int) -> int:
        """The right hash after that many updates."""
        models = self._models
        while len(models) <= updates:
            models.append(updated(models[-1], len(models), self._weights))
        return models[updates]
