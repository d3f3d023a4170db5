"""Loops that cannot be looked at before each step. What was seen to change there is not forgotten silently."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("place", "at"), [("forward", 73), ("reduced", 76), ("updated", 75)])
def test_what_nobody_looks_at_any_more_starts_over(check: Check, place: str, at: int) -> None:
    job = check("array", place, at)
    assert "steps change board" in job.text and "in a way that the source does not show" in job.text, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 73), ("updated", 75)])
def test_what_nobody_changes_heals(check: Check, place: str, at: int) -> None:
    job = check("calm", place, at)
    assert job.text.count("begin 0") == 1, job.text
