"""Tests the barrier that names the missing ranks, and orders that a guard refuses. Both leave the job as it was.

Two real ranks run workers/guard_barrier.py, which asserts that the groups still work. Their error messages are checked
here.
"""

from __future__ import annotations

from pathlib import Path

from tests.train.guarded import Ranks


def test_who_is_missing_and_what_is_refused(tmp_path: Path) -> None:
    with Ranks("guard_barrier", 2, tmp_path) as ranks:
        ((one,), (other,)) = ranks.results()
    assert one["missing"] == "rank 1 of group 0@0-1 did not come to barrier 4 within 1 s; look at what it does."
    for found in (one, other):
        assert "no such group" in found["ungrouped"]
        assert "cannot be rebuilt for epoch -1" in found["back"]
        assert "cannot be rebuilt for epoch 1; the next one is 2" in found["twice"]
        assert "is a guard itself" in found["two guards"]
