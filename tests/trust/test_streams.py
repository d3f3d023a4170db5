"""Loaders that continue where they stopped. A newcomer gets the batches of the rank that died, or all start over."""

from __future__ import annotations

import pytest

from taskd.state.coverage import STARTS_OVER
from tests.trust.conftest import Check

pytestmark = pytest.mark.slow
PLACES = [("begin", 2), ("end", 4), ("begin", 5), ("backward", 8), ("end", 14)]
"""In the first epoch, at its end, at the beginning of the next, within that one, and in the last step of all."""
KEPT = ["cursor", "turns", "began", "lazy", "sampler", "batches after", "dataset", "dataset processes", "iterable"]


@pytest.mark.parametrize(("place", "at"), PLACES)
@pytest.mark.parametrize("shape", ["", " loops"])
@pytest.mark.parametrize("kind", KEPT)
def test_what_counts_in_a_loader_is_kept(check: Check, kind: str, shape: str, place: str, at: int) -> None:
    job = check(kind + shape, place, at)
    assert "healed in" in job.text and job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(("place", "at"), PLACES)
@pytest.mark.parametrize("shape", ["", " loops"])
@pytest.mark.parametrize("kind", ["opened", "state", "times"])
def test_a_mark_in_a_loader_is_kept_or_refused(check: Check, kind: str, shape: str, place: str, at: int) -> None:
    """A newcomer's rehearsal may have set it. If it loads another batch than its predecessor had, all start over."""
    job = check(kind + shape, place, at)
    assert job.text.count("begin 0") == 1 or "going on would be wrong" in job.text, job.text


@pytest.mark.parametrize(("place", "at"), PLACES[1:4])
@pytest.mark.parametrize("kind", ["cursor", "sampler", "dataset", "iterable", "shared"])
def test_a_batch_that_was_written_into_comes_again(check: Check, kind: str, place: str, at: int) -> None:
    job = check(f"{kind} own", place, at)
    assert "healed in" in job.text and job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize(("place", "at"), PLACES[:4])
def test_an_iterator_in_a_loader_is_said(check: Check, place: str, at: int) -> None:
    job = check("itself loops", place, at)
    assert "the loader has an iterator in it (._batches)" in job.text and STARTS_OVER in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [PLACES[0], PLACES[3]])
def test_another_batch_is_seen(check: Check, place: str, at: int) -> None:
    """The batch depends on a list that taskd does not see."""
    job = check("dataset global", place, at)
    assert f"has given another batch for step {at}" in job.text and job.text.count("begin 0") == 2, job.text
