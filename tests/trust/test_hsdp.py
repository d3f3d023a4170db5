"""A sharded model of which each shard is on two ranks. A replaced rank takes its shards from the other one."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

RANKS = 4
PLACES = [
    ("plain", "inside", 3),
    ("plain", "forward", 3),
    ("plain", "loss", 9),
    ("plain", "backward", 4),
    ("plain", "reduced", 4),
    ("plain", "updating", 5),
    ("plain", "updated", 6),
    ("plain", "behind", 8),
    ("clipped", "clipped", 5),
    ("clipped", "reduced", 9),
    ("mixed", "inside", 4),
    ("mixed", "backward", 9),
    ("recomputed", "inside", 3),
    ("recomputed", "backward", 5),
    ("recomputed", "loss", 8),
    ("summed", "between", 4),
    ("summed", "backward", 9),
    ("carried", "forward", 3),
    ("carried", "backward", 4),
    ("carried", "updated", 9),
    ("added", "backward", 3),
    ("added", "reduced", 8),
    ("kept", "inside", 4),
    ("kept", "backward", 9),
    ("offloaded", "backward", 5),
    ("uneven", "inside", 8),
    ("uneven", "updating", 3),
    ("perturbed", "inside", 4),
    ("perturbed", "reduced", 9),
    ("evaluated", "forward", 7),
    ("evaluated", "backward", 9),
    ("taught", "taught", 4),
    ("taught", "backward", 9),
    ("logged", "updated", 5),
    ("logged", "behind", 5),
    ("logged", "inside", 9),
    ("repeated", "inside", 4),
    ("repeated", "updating", 9),
    ("given", "backward", 4),
    ("given", "inside", 8),
    ("crosswise", "inside", 3),
    ("crosswise", "backward", 9),
]
STARTS_OVER = [
    ("lost", "backward", 3, "nobody holds anything"),
    ("alone", "inside", 3, "is a DTensor), and a rank's shards have no copy"),
    ("beside", "backward", 4, "and which ranks hold the same is not known"),
    ("apart", "backward", 4, "is a DTensor), and a rank's shards have no copy"),
]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("kind", "place", "at"), PLACES)
def test_a_shard_is_taken_from_its_twin(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert "healed in" in job.text and job.text.count("begin 0") == 1 and job.text.count("begin 1") == 2, job.text


@pytest.mark.parametrize(("kind", "place", "at", "why"), STARTS_OVER)
def test_shards_without_a_twin_start_over(check: Check, kind: str, place: str, at: int, why: str) -> None:
    job = check(kind, place, at)
    assert why in job.text and job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("backward", 4), ("inside", 9)])
def test_a_step_with_an_error_is_done_again(check: Check, place: str, at: int) -> None:
    job = check("raising", place, at)
    assert "a bad sample" in job.text and "healed in" in job.text and job.text.count("begin 1") == 1, job.text


@pytest.mark.parametrize("at", [21_213, 31_337, 44_444, 52_525, 66_666, 77_777])
def test_a_death_before_any_line(check: Check, at: int) -> None:
    check("clipped", "line", at)
