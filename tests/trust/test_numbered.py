"""Loops that number their steps by enumerate(), and compute with the number. Every step gets the number that it has in
the undisturbed run."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow

PLACES = [
    ("forward", 1),
    ("forward", 4),
    ("updated", 6),
    ("behind", 6),
    ("reduced", 9),
    ("updated", 12),
    ("between", 0),
]


@pytest.mark.parametrize("kind", ["rate", "static", "zipped", "logged", "listed"])
@pytest.mark.parametrize(("place", "at"), PLACES)
def test_it_heals(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


@pytest.mark.parametrize(("place", "at"), PLACES)
def test_updates_that_depend_on_the_number_are_right(check: Check, place: str, at: int) -> None:
    """Ranks do not wait for each other in steps that only accumulate, so some deaths make all start over."""
    check("accumulate", place, at)


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 5), ("behind", 9)])
def test_what_counts_in_another_way_starts_over(check: Check, place: str, at: int) -> None:
    job = check("counted", place, at)
    assert "the loop numbers its steps by itself, in a way that no repair puts back" in job.text, job.text
    assert job.text.count("begin 0") >= 2, job.text  # the rank that refuses may be the survivor
