"""Steps that take other code than before. A newcomer has what its script begins with, so all start over, unless each
step, or what stands between the loops, sets it anew."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check, Train

pytestmark = pytest.mark.slow
HEALED = ["guarded", "each", "late", "chosen", "epoch", "method", "closure"]
OVER = ["loss", "function", "states", "activation", "forward", "hook", "hook of a gradient", "unhook", "made"]


@pytest.mark.parametrize(("place", "at"), [("forward", 2), ("updated", 2), ("forward", 4), ("updated", 4)])
@pytest.mark.parametrize("kind", OVER)
def test_what_steps_have_swapped_starts_over(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 2 or (place, at) == ("forward", 2), job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 2), ("updated", 2), ("forward", 9)])
@pytest.mark.parametrize("kind", HEALED)
def test_what_is_set_anew_heals(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 0), ("updated", 0), ("forward", 4), ("forward", 9)])
def test_what_a_rehearsal_has_hooked_is_right(check: Check, place: str, at: int) -> None:
    check("hook at first", place, at)


@pytest.mark.parametrize(("place", "at"), [("forward", 2), ("forward", 9), ("updated", 9)])
def test_what_is_made_at_its_first_use_heals(check: Check, place: str, at: int) -> None:
    job = check("first use", place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


def test_what_each_start_breaks_again_ends_the_job(train: Train) -> None:
    """No rank's restarts are used up: each error is raised by all ranks, and what is tried then is refused."""
    job = train("broken", "nowhere", -1, code=1)
    assert 1 < job.text.count("begin 0") <= 4 and "Expected to have finished reduction" in job.text, job.text


def test_an_object_that_steps_keep_and_make_anew_heals(check: Check) -> None:
    job = check("result", "forward", 4)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


def test_a_hook_that_each_step_leaves_behind_starts_over(check: Check) -> None:
    job = check("leak", "forward", 4)
    assert job.text.count("begin 0") == 2 and "hooks, and no repair does that again" in job.text, job.text
