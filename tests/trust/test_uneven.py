"""Loops with more steps on some ranks than on others."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check, Train

pytestmark = pytest.mark.slow
RANKS = 3
EVEN = 4
"""The steps of the first loop that all ranks do."""
PLACES = [("begin", 2), ("backward", 3), ("begin", 4), ("behind", 4), ("begin", 5), ("backward", 6), ("end", 8)]
KINDS = ["list", "stream", "sampler", "dead"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_job_is_not_started_over_though_ranks_with_as_many_steps_differ(train: Train, kind: str) -> None:
    job = train(f"long {kind}", "nowhere", -1)
    assert job.text.count("taskd[rank 0]: this loop has ended after") == 1, job.text
    assert job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize("kind", ["join", "long join"])
def test_ranks_that_are_joined_do_not_meet_at_the_end(train: Train, kind: str) -> None:
    job = train(kind, "nowhere", -1)
    assert job.text.count("taskd[rank 0]: the loop stands in torch's Join") == 1, job.text
    assert job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(("place", "at"), PLACES)
@pytest.mark.parametrize("kind", ["even", "before"])
def test_ranks_that_have_as_many_batches_heal(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


@pytest.mark.parametrize(("place", "at"), PLACES)
def test_joined_ranks_start_over(check: Check, place: str, at: int) -> None:
    job = check("join", place, at)
    assert job.text.count("begin 0") >= 2, job.text  # a rank in Join's own collectives fails by itself


@pytest.mark.parametrize(("place", "at"), PLACES)
@pytest.mark.parametrize("kind", KINDS)
def test_it_ends_as_without_the_death(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert at <= EVEN or "this loop has ended after 4 steps on rank 0 " in job.text, job.text
    assert at <= EVEN or job.text.count("begin 0") == 2, job.text
