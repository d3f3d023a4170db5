"""Fixtures of the timing tests: they measure the pace of the machine first, and skip the tests on a busy machine.

Timing needs a machine that does nothing else. A bound is the aim times ten times the machine's pace, so a test fails
only for a wrong order of magnitude. The figures themselves come from `taskd bench`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

BUSY_LOAD = 0.5
STEAL_SHARE = 0.02
TURNS = 2_000_000
REFERENCE_S = 0.06
"""The time for TURNS on the reference machine, for which the aims were written."""
ROOM = 10


def steal_and_all() -> tuple[int, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return fields[7], sum(fields[:8])


def spin_s() -> float:
    begin = time.perf_counter()
    number = 0
    while number < TURNS:
        number += 1
    return time.perf_counter() - begin


@pytest.fixture(scope="session")
def pace() -> float:
    """How many times as long this machine takes as the reference machine; skips if others use the processors."""
    runnable = int(Path("/proc/loadavg").read_text().split()[3].split("/")[0]) - 1
    load = os.getloadavg()[0] / len(os.sched_getaffinity(0))
    if runnable > 1 or load > BUSY_LOAD:
        pytest.skip(f"not measured: the machine is busy (load {load:.1f} per processor, {runnable} others run)")
    before = steal_and_all()
    spins = [spin_s() for _ in range(5)]
    after = steal_and_all()
    if after[0] - before[0] > STEAL_SHARE * (after[1] - before[1]):
        pytest.skip("not measured: another machine takes this one's processors")
    return max(min(spins) / REFERENCE_S, 0.1)


@pytest.fixture
def within(pace: float, record_property: Callable[[str, object], None]) -> Callable[[str, float, float], None]:
    """within(what, found_s, aim_s): fails if `what` takes more than ten times its aim at this machine's pace."""

    def check(what: str, found_s: float, aim_s: float) -> None:
        bound_s = aim_s * pace * ROOM
        print(f"{what}: {found_s * 1e6:.2f} us (aim {aim_s * 1e6:g} us, pace {pace:.2f})")
        record_property(what, found_s)
        assert found_s < bound_s, f"{what} took {found_s * 1e6:.1f} us, more than ten times its aim at pace {pace:.2f}"

    return check
