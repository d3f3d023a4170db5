"""What a script does behind `with step:`. Ranks that do the step again undo it. Newcomers get it, or all start over. No
run ends with other weights."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

KINDS = ["dict", "module", "rate", "norm"]
PLACES = [
    ("forward", 4),
    ("reduced", 9),
    ("updated", 5),
    ("updated", 10),
    ("behind", 5),
    ("between", 0),
    ("between", 1),
]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "at"), PLACES)
def test_what_follows_a_step(check: Check, kind: str, place: str, at: int) -> None:
    check(kind, place, at)


@pytest.mark.parametrize("kind", ["picture", "precise"])
@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 12), ("between", 0), ("between", 1)])
def test_what_changes_buffers_between_two_epochs(check: Check, kind: str, place: str, at: int) -> None:
    check(kind, place, at)


@pytest.mark.parametrize(("place", "at"), [("forward", 11), ("reduced", 11), ("forward", 5)])
def test_a_loop_that_is_left_behind_its_last_step(check: Check, place: str, at: int) -> None:
    job = check("last", place, at)
    given_up = "the script leaves its loop behind step 11, which is given up" in job.text
    assert given_up == ((place, at) == ("forward", 11)), job.text  # behind the all-reduce, rank 0 makes the update
