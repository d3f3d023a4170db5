"""Tensors that a loop hands on by itself. Small ones are kept. With large ones, the job says so in its first steps, and
starts over after a death.

A tensor that is only summed up is no reason to start over. A registered tensor is put back.
"""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

HANDS_ON = "on from step to step, and nobody registered that"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("place", "at"), [("forward", 3), ("reduced", 3), ("updated", 1), ("backward", 0)])
@pytest.mark.parametrize(("kind", "name"), [("hidden large", "hidden"), ("dict large", "averages[name]")])
def test_what_is_handed_on_starts_over(check: Check, kind: str, name: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert f"the loop hands {name} {HANDS_ON}" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 2), ("updated", 1)])
def test_what_is_copied_once_starts_over(check: Check, place: str, at: int) -> None:
    job = check("target large", place, at)
    assert f"the loop hands target {HANDS_ON}" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("reduced", 3), ("backward", 1), ("updated", 3)])
@pytest.mark.parametrize("kind", ["hidden", "dict", "target"])
def test_small_ones_are_kept(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert HANDS_ON not in job.text, job.text
    assert place not in ("forward", "backward") or job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 1), ("forward", 4), ("updated", 0)])
@pytest.mark.parametrize("kind", ["centre", "losses"])
def test_what_a_newcomer_rehearses_is_right(check: Check, kind: str, place: str, at: int) -> None:
    check(kind, place, at)


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 2)])
def test_what_it_has_otherwise_is_given_or_starts_over(check: Check, place: str, at: int) -> None:
    job = check("late", place, at)
    if place == "updated":
        assert "nobody knows what the script's centre would be after step 2" in job.text, job.text
        assert job.text.count("begin 0") >= 2, job.text  # the rank that refuses may be the survivor


def test_numbers_that_steps_gather_are_given(check: Check) -> None:
    job = check("losses", "forward", 4)
    assert job.text.count("begin 0") == 1, job.text


def test_numbers_that_a_lost_step_has_gathered_are_unknown(check: Check) -> None:
    job = check("losses", "updated", 2)
    assert "nobody knows what the script's losses would be after step 2" in job.text, job.text
    assert job.text.count("begin 0") >= 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 3), ("updated", 3)])
@pytest.mark.parametrize("kind", ["sum", "kept"])
def test_what_is_registered_or_only_summed_up_is_no_reason(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert HANDS_ON not in job.text and job.text.count("begin 0") == 1, job.text
