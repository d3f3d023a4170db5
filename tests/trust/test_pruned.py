"""Masks that prune layers. A newcomer that would compute other masks than the others refuses and names them."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow

OTHERWISE = "and this newcomer has reckoned something else there than all others"


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 10), ("reduced", 7)])
def test_a_death_in_a_step_heals(check: Check, place: str, at: int) -> None:
    job = check("masks", place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


@pytest.mark.parametrize(("place", "at"), [("between", 0), ("between", 1), ("behind", 6)])
def test_a_death_before_they_are_used_starts_over(check: Check, place: str, at: int) -> None:
    """prune() takes the weight that the last forward has left in an attribute, which no newcomer has."""
    job = check("masks", place, at)
    assert f"first.weight_mask, {OTHERWISE}" in job.text.replace("model.second.weight_mask, ", ""), job.text
