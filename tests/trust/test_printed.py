"""What the steps of a loop gather on each rank and what is only shown: the job heals."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

KINDS = ["number", "tensor", "list", "tensors", "meter", "items", "attribute", "dict"]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 9), ("reduced", 17)])
def test_what_is_only_shown(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text
