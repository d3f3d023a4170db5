"""Numbers of each rank that move with its own loss, and that its steps compute with.

A newcomer gets the number of its predecessor. If that is one step old, all ranks start over, and the number is named.
"""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

NAMES = {"criterion": "criterion.alpha", "meter": "last.value", "previous": "previous", "given": "state['scale']"}

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("place", "at"), [("forward", 2), ("backward", 6), ("forward", 9)])
@pytest.mark.parametrize("kind", [*NAMES, "shown"])
def test_a_newcomer_goes_on_with_the_number(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


@pytest.mark.parametrize(("place", "at"), [("updated", 2), ("reduced", 6), ("updated", 9)])
@pytest.mark.parametrize("kind", NAMES)
def test_a_number_that_misses_a_step_starts_over(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    if job.text.count("begin 0") == 1:  # the others had not made the update either
        assert place == "reduced" and "healed in" in job.text, job.text
    else:
        assert f"nobody knows what the script's {NAMES[kind]} would be after step {at}" in job.text, job.text


@pytest.mark.parametrize("at", [2, 9])
def test_what_is_only_shown_may_miss_a_step(check: Check, at: int) -> None:
    job = check("shown", "updated", at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text
