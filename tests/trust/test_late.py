"""Numbers that a loop draws after its forward. A rank that goes on after that has drawn them, or all start over."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

MISSED = "the loop draws random numbers, or writes into buffers or what is registered as local"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["dropout", "noise", "numbers", "buffers", "local"])
@pytest.mark.parametrize(("place", "at"), [("behind", 2), ("handed", 3), ("handed", 7), ("behind", 9)])
def test_what_was_drawn_in_a_step_that_is_over_is_not_drawn_again(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert MISSED not in job.text and job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize("kind", ["dropout", "numbers", "buffers", "local"])
@pytest.mark.parametrize(("place", "at"), [("updated", 3), ("drawn", 4), ("reduced", 9)])
def test_what_nobody_can_know_starts_over(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert f"{MISSED}, behind its backward" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("updated", 3), ("behind", 4), ("drawn", 9)])
def test_what_was_drawn_between_two_steps_starts_over(check: Check, place: str, at: int) -> None:
    job = check("between", place, at)
    assert f"{MISSED}, between two steps" in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("updated", 3), ("behind", 4), ("handed", 9), ("drawn", 9)])
def test_a_loop_that_draws_nothing_there_heals(check: Check, place: str, at: int) -> None:
    job = check("none", place, at)
    assert MISSED not in job.text and job.text.count("begin 0") == 1, job.text
