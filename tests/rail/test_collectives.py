"""Reductions and collectives of csrc/rail: over a fake transport in random order, and over engines whose sockets fail.

Results are compared bit for bit with the simplest possible reduction. Everything runs under sanitizers.
"""

from __future__ import annotations

import pytest

from tests import sanitized
from tests.patience import BUILD_S


def run(kind: str, *words: object) -> str:
    return sanitized.said(sanitized.build("rail-collectives", kind), kind, *words)


@pytest.mark.limit(BUILD_S)
def test_over_a_fake_transport() -> None:
    assert " passed\n" in run("memory")


@pytest.mark.limit(BUILD_S)
@pytest.mark.parametrize(("ranks", "rounds", "most_bytes"), [(2, 6, 3000000), (4, 4, 1000000), (8, 2, 300000)])
@pytest.mark.parametrize("faults", [0, 4])
def test_over_engines(ranks: int, rounds: int, most_bytes: int, faults: int) -> None:
    assert run("memory", "engines", ranks, rounds, most_bytes, faults, 7) == "passed\n"


@pytest.mark.limit(BUILD_S)
def test_threads_of_engines_do_not_race() -> None:
    assert run("races", "engines", 4, 4, 1000000, 4, 7) == "passed\n"


@pytest.mark.limit(BUILD_S)
def test_the_largest_and_the_widest() -> None:
    assert run("memory", "engines", 2, 2, 64 << 20, 2, 1) == "passed\n"
    assert run("memory", "engines", 16, 2, 200000, 0, 2) == "passed\n"
