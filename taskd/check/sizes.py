"""How much a probe computes, copies and sends, and how often.

Both nodes of a test must use the same sizes, or their times would not be comparable. These numbers say nothing about
how long a check waits (core/limits.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from taskd.core.limits import MS

TRIES_OF_BLOCKS = 24
"""Transfers of one size, at most. The shortest counts."""
PATIENCE_NS = 500 * MS
"""After this time, a device is not tried again in one test."""
HELD_BACK = 2.5
"""Tries take longer together than the shortest one says, since nodes on one host, and other processes, disturb each
other. This factor and more is no disturbance: the node is held back."""
SEEDS = 3
"""Different products in one test."""
BLOCKS = (1 << 16, 1 << 19, 1 << 22)
"""Bytes of a transfer. A larger one is tried while it can be expected to take BLOCK_NS at most, checksums included."""
BLOCK_NS = 20 * MS
UNIT = 1 << 20
"""Times of transfers are told for so many bytes."""
UNIT_NS = MS // 2
"""A shorter time for these is told as this one: one stream is then limited by processors and not by the rail."""


class Size(NamedTuple):
    """The work of one kind of device."""

    product: int
    """Rows and columns of each matrix."""
    batch: int
    """Products that are one try."""
    tries: int
    memory: int
    """Bytes of a copy."""
    copies: int


PROCESSOR = Size(256, 2, 48, 1 << 24, 16)
"""A try is shorter than the time for which a system lets a process run, so that some tries are not disturbed."""
ACCELERATOR = Size(4_096, 8, 3, 1 << 30, 3)
PRODUCTS = frozenset({PROCESSOR.product, ACCELERATOR.product})
"""The sizes of products that a partner may have computed."""


def time_of(tries_ns: Sequence[int]) -> int:
    """Return the time of one try: the shortest, or more if all of them show that the node is held back. 0: there was
    none."""
    return max(min(tries_ns), int(sum(tries_ns) / len(tries_ns) / HELD_BACK)) if tries_ns else 0
