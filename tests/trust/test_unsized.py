"""A loop over a loader without a length. Its end is found by all ranks, also by a newcomer."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow
PLACES = [("begin", 2), ("end", 3), ("behind", 3), ("begin", 4), ("backward", 6), ("end", 11), ("behind", 11)]
"""In the first epoch, at its end, at the beginning of the next, within that one, and in the last step of all."""


KINDS = ["own", "stream", "processes", "drawn", "counted", "batches", "staying", "written"]


@pytest.mark.parametrize(("place", "at"), PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_loader_without_a_length_heals(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert "healed in" in job.text and job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(("place", "at"), PLACES)
def test_what_counts_the_ends_is_kept_or_refused(check: Check, place: str, at: int) -> None:
    job = check("ends", place, at)
    assert job.text.count("begin 0") == 1 or "going on would be wrong" in job.text, job.text


@pytest.mark.parametrize("at", [4, 8, 12])
def test_who_finds_the_end_may_die(check: Check, at: int) -> None:
    job = check("own", "over", at)
    assert "healed in" in job.text and job.text.count("begin 0") == 1, job.text
