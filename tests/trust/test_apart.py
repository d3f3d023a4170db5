"""Ranks whose states differ, as the script wants it: no rank has what another one loses, so all start over."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

RANKS = 3
UNLIKE = True

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 5)])
@pytest.mark.parametrize("victims", ["1", "1 2"])
@pytest.mark.parametrize("kind", ["weights", "moments", "rates"])
def test_what_only_a_lost_rank_held_makes_all_start_over(
    check: Check, kind: str, victims: str, place: str, at: int
) -> None:
    job = check(f"{kind} {victims}", place, at)
    assert job.text.count("begin 0") >= 2, job.text  # more often, if the second victim had not come so far
    known = "and no rank's state can replace another's, so all start again" in job.text
    assert known or "in a repair, so what" in job.text, job.text  # the first proof came before the death, or after it


@pytest.mark.parametrize("victims", ["1", "1 2"])
def test_ranks_that_hold_the_same_heal(check: Check, victims: str) -> None:
    job = check(f"alike {victims}", "forward", 4)
    assert "healed in" in job.text and job.text.count("begin 0") == 1, job.text
