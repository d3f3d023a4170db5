"""Bytes that nobody would send, into all of the rail transport that reads bytes; under sanitizers.

Each target runs for a bounded time from a fixed seed, and from one of today's. A round that fails tells its seed:
`build/sanitize/rail-fuzz-memory-... TARGET SEED` is that round again.
"""

from __future__ import annotations

import os
import time

import pytest

from tests import sanitized
from tests.patience import BUILD_S

MILLISECONDS = int(os.environ.get("RAIL_FUZZ_MS", "2000"))


@pytest.mark.slow
@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize("target", ["texts", "handshake", "link", "session"])
@pytest.mark.parametrize("seed", [1, int(time.time()) // 86400 * 1_000_000], ids=["fixed", "today's"])
def test_nothing_that_is_said_breaks_it(target: str, seed: int) -> None:
    said = sanitized.said(sanitized.build("rail-fuzz", "memory"), "memory", target, seed, MILLISECONDS)
    assert int(said.split()[0]) > 0
