"""Tensors that steps keep where no source and no look shows them: the weights are those of the undisturbed run. What
nobody computes with does not hinder a repair."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow

HANDED_ON = ["fed back", "sent", "default", "kept", "late", "retained", "swapped", "patched", "gradient"]
HARMLESS = ["mask", "shown", "work"]


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 9), ("forward", 3), ("reduced", 8)])
@pytest.mark.parametrize("kind", HANDED_ON)
def test_the_weights_are_right(check: Check, kind: str, place: str, at: int) -> None:
    check(kind, place, at)


def test_all_start_over_once_and_hear_why(check: Check) -> None:
    job = check("fed back", "forward", 4)
    said = job.wait_for_line("all ranks start over")
    assert "was ended (going on would be wrong: the step computes with" in said, job.text
    assert job.text.count("begin 0") == 2, job.text


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 5)])
@pytest.mark.parametrize("kind", HARMLESS)
def test_what_nobody_computes_with_hinders_no_repair(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1, job.text
