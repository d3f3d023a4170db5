"""Bytes that nobody would send, into all of the rail transport that reads bytes; under sanitizers.

Each target runs for a bounded time from a fixed seed, and from one of today's. A round that fails tells its seed:
`build/sanitize/rail-fuzz-memory-... TARGET SEED` is that round again.
"""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from tests.rail import building

PARTS = (
    "link",
    "frame",
    "counters",
    "key",
    "handshake",
    "door",
    "endpoint",
    "socket",
    "outbox",
    "inbox",
    "pace",
    "silence",
)
RAIL = building.ROOT / "csrc" / "rail"
UNITS = [
    *(RAIL / f"{part}.cpp" for part in PARTS),
    *sorted(RAIL.glob("session*.cpp")),
    RAIL / "event.cpp",
    *sorted((building.HERE / "fuzz").glob("*.cpp")),
]
MILLISECONDS = int(os.environ.get("RAIL_FUZZ_MS", "2000"))


@pytest.mark.slow
@pytest.mark.limit(900)
@pytest.mark.parametrize("target", ["texts", "handshake", "link", "session"])
@pytest.mark.parametrize("seed", [1, int(time.time()) // 86400 * 1_000_000], ids=["fixed", "today's"])
def test_nothing_that_is_said_breaks_it(target: str, seed: int) -> None:
    command = [*building.command(building.build("rail-fuzz", UNITS, "memory"), "memory"), target, str(seed)]
    done = subprocess.run(
        [*command, str(MILLISECONDS)],
        env=building.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, done.stdout[-8000:]
    assert int(done.stdout.split()[0]) > 0
