"""Numbers that come from trained weights and that the source does not show. A newcomer refuses and names them."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

UNLIKE = "and this newcomer has found something else there than its life before"
OTHERWISE = "and this newcomer has reckoned something else there than all others"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("single", "Only._it.weight"),
        ("default", "default 1 of kept"),
        ("cached", "what weight_of remembers"),
        ("delegate", "state.inner.weight"),
        ("between", "state.inner.sum"),
        ("unrolled", "weight"),
    ],
    ids=["single", "default", "cached", "delegate", "between", "unrolled"],
)
@pytest.mark.parametrize(("place", "at"), [("forward", 9), ("updated", 12), ("reduced", 16)])
def test_what_its_life_before_had_otherwise_starts_over(
    check: Check, kind: str, name: str, place: str, at: int
) -> None:
    job = check(kind, place, at)
    assert f"the loop uses {name}" in job.text and UNLIKE in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("kind", "at"), [("single", 1), ("delegate", 1), ("between", 1), ("open", 1), ("open", 2)])
def test_what_nobody_can_know_starts_over(check: Check, kind: str, at: int) -> None:
    job = check(kind, "evaluated", at)
    assert OTHERWISE in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(
    ("kind", "place", "at"),
    [("single", "forward", 3), ("single", "updated", 5), ("scaled", "forward", 9), ("scaled", "reduced", 16)],
)
def test_what_is_seen_or_has_not_moved_heals(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1, job.text
