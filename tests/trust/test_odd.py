"""What steps keep in odd places: a death gives the weights of the undisturbed run. It is healed, or all start over."""

from __future__ import annotations

import pytest

from tests.trust.conftest import Check

pytestmark = pytest.mark.slow

HEALED = ["Enum", "group", "optimizer", "drawn", "hook of all"]
"""Plain values that can be set, and generators of random numbers."""
MARKED = ["callback", "queue", "slots", "array", "generator", "method", "functions", "value", "environment"]


@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("reduced", 9), ("updated", 10), ("behind", 6)])
@pytest.mark.parametrize("kind", [*HEALED, *MARKED, "metaclass"])
def test_the_weights_are_right(check: Check, kind: str, place: str, at: int) -> None:
    check(kind, place, at)


@pytest.mark.parametrize("kind", HEALED)
def test_before_the_update_it_heals(check: Check, kind: str) -> None:
    job = check(kind, "forward", 4)
    assert job.text.count("begin 0") == 1, job.text


@pytest.mark.parametrize("kind", MARKED[:-2])
def test_what_has_only_a_mark_starts_over(check: Check, kind: str) -> None:
    job = check(kind, "forward", 4)
    assert "nobody registered that" not in job.text, job.text  # else it starts over for another reason
    assert job.text.count("begin 0") > 1, job.text
