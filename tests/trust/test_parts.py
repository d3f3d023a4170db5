"""Models of which each rank has a part. A replaced rank takes its state from a rank that has the same part."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

RANKS = 4

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("place", "at"), [("forward", 3), ("loss", 9), ("reduced", 5), ("updated", 5), ("behind", 8)])
@pytest.mark.parametrize("kind", ["pipeline", "tensor", "scaled"])
def test_a_part_is_taken_from_whoever_has_it(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert "healed in" in job.text and job.text.count("begin 0") == 1 and job.text.count("begin 1") == 2, job.text


@pytest.mark.parametrize("at", [3, 4, 5])
def test_a_step_that_one_part_leaves_out_is_healed(check: Check, at: int) -> None:
    job = check("scaled", "loss", at)
    assert "healed in" in job.text and job.text.count("begin 0") == 1, job.text


def test_parts_that_nobody_knows_start_over(check: Check) -> None:
    job = check("alone", "reduced", 5)
    assert "no rank's state can replace another's" in job.text and job.text.count("begin 0") == 2, job.text
