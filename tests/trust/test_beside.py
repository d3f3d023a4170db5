"""What steps keep beside the parameters: a death gives the weights of the undisturbed run. It is healed, or all start
over."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow

KEPT = ["forward", "left"]
"""Small tensors that steps hand on are kept."""
SAID = ["queue", "streams"]
"""The source shows it, so it is said before any death."""
SEEN = ["anchor", "tracker", "by id", "records"]
"""Only a look shows it."""


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 9)])
@pytest.mark.parametrize("kind", [*SAID, *SEEN])
def test_the_weights_are_right(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") > 1, job.text
    if kind in SAID:
        assert "cannot be healed in place" in job.text.partition("died")[0], job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("reduced", 6), ("updated", 9), ("behind", 5)])
@pytest.mark.parametrize("kind", [*KEPT, "cached"])
def test_what_is_kept_heals_before_the_update(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert place != "forward" or job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 1), ("forward", 4), ("updated", 9)])
def test_what_is_only_a_result_heals(check: Check, place: str, at: int) -> None:
    job = check("results", place, at)
    assert job.text.count("begin 0") == 1, job.text


def test_what_a_step_has_made_first_is_made_again(check: Check) -> None:
    job = check("tracker", "forward", 3)
    assert job.text.count("begin 0") == 1, job.text
