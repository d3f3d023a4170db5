"""Drains and rebuilds at random moments: every outcome is right, nothing hangs, and no resource leaks.

Real ranks run workers/guard_storm.py. The seed decides which events happen at the same time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.train.guarded import Ranks

MOST_GROWTH_MIB = 24


@pytest.mark.parametrize(
    ("size", "rounds", "inner"), [(2, 120, "gloo"), (3, 40, "gloo"), (2, 60, "rail"), (3, 30, "rail")]
)
def test_storm(tmp_path: Path, size: int, rounds: int, inner: str) -> None:
    with Ranks("guard_storm", size, tmp_path, "storm", str(rounds), "7", env={"TASKD_INNER": inner}) as ranks:
        counts = [said_of[0] for said_of in ranks.results()]
    for count in counts:
        assert count["done"] and count["abandoned"], counts


@pytest.mark.parametrize(("inner", "rounds"), [("gloo", 125), ("rail", 60)])
def test_reconfigurations_leave_nothing_behind(tmp_path: Path, inner: str, rounds: int) -> None:
    with Ranks("guard_storm", 2, tmp_path, "leak", str(rounds), "7", env={"TASKD_INNER": inner}) as ranks:
        for (said,) in ranks.results():
            before, after = said["before"], said["after"]
            assert after["threads"] == before["threads"], said
            # Over rails, the other rank may be in the next epoch already, and may have closed the one connection.
            assert abs(after["fds"] - before["fds"]) <= (inner == "rail"), said
            assert after["rss_mib"] - before["rss_mib"] <= MOST_GROWTH_MIB, said
