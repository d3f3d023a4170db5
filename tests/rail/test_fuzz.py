"""Fuzzing of every part of the rail transport that reads bytes, with bytes that no peer would send; under sanitizers.

Each target runs for a bounded time from a fixed seed, and from a seed of today. A round that fails prints its seed.
`build/sanitize/rail-fuzz-memory-... TARGET SEED` runs that round again. Seeds that have failed are kept and run each
time.
"""

from __future__ import annotations

import os
import time

import pytest

from tests import sanitized
from tests.patience import BUILD_S

MILLISECONDS = int(os.environ.get("RAIL_FUZZ_MS", "2000"))
FAILED = {
    "session": {
        4834: "a copy was freed while a link still had to send it",
        7845: "an offer changed the size of a message that was coming into the pool",
        18865: "a message went from the pool while a second link was writing it",
    }
}
KEPT = [pytest.param(target, seed, id=f"{target}-{seed}") for target, seeds in FAILED.items() for seed in seeds]


@pytest.mark.slow
@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize("target", ["texts", "handshake", "link", "session"])
@pytest.mark.parametrize("seed", [1, int(time.time()) // 86400 * 1_000_000], ids=["fixed", "today's"])
def test_nothing_that_is_said_breaks_it(target: str, seed: int) -> None:
    said = sanitized.said(sanitized.build("rail-fuzz", "memory"), "memory", target, seed, MILLISECONDS)
    assert int(said.split()[0]) > 0


@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize(("target", "seed"), KEPT)
def test_what_has_broken_it_does_so_no_more(target: str, seed: int) -> None:
    assert sanitized.said(sanitized.build("rail-fuzz", "memory"), "memory", target, seed) == "1 rounds\n"
