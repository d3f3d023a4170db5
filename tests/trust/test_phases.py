"""Trainings in several loops, each with a new DistributedDataParallel. A newcomer comes to the loop of the others, and
the job heals."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow


KINDS = ["phases", "folds", "objects"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 13), ("forward", 17)])
def test_it_heals_in_every_loop(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


@pytest.mark.parametrize("kind", KINDS)
def test_a_death_between_two_loops(check: Check, kind: str) -> None:
    """The others communicate there, outside of a step, which cannot be done again. So all start over."""
    check(kind, "between", 0)
