"""What the steps of a loop gather on each rank, if more than a line depends on it: a newcomer gets it, or all start
over."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

KINDS = ["number", "tensor", "list", "tensors", "meter", "items", "attribute", "dict"]
NUMBERS = ["number", "list", "meter", "attribute", "dict"]
PLACES = [("forward", 4), ("updated", 9), ("reduced", 17)]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("use", ["computes", "weighs"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "at"), PLACES)
def test_what_is_used(check: Check, kind: str, use: str, place: str, at: int) -> None:
    job = check(f"{kind} {use}", place, at)
    if kind in NUMBERS and place == "forward":  # a death before the update, so that nothing is missing
        assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text
