"""What a rank sums up or gathers over all epochs, and computes with: a newcomer gets it, or all start over."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow

KINDS = ["number", "list", "attribute", "deque", "dict"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("forward", 9), ("between", 0)])
def test_a_newcomer_gets_it(check: Check, kind: str, place: str, at: int) -> None:
    job = check(kind, place, at)
    assert job.text.count("begin 0") == 1 and "healed in" in job.text, job.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("place", "at"), [("updated", 5), ("behind", 6), ("updated", 13)])
def test_it_is_right(check: Check, kind: str, place: str, at: int) -> None:
    check(kind, place, at)
