"""What steps gather to show it: nobody's curve begins in the middle after a repair."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.launched import Launched
from tests.trust.conftest import Check, Train

KINDS = ["list", "dict", "rows", "object", "counter", "early", "beside"]
pytestmark = pytest.mark.slow
_calm: dict[str, dict[int, Any]] = {}


def shown(job: Launched) -> dict[int, Any]:
    """Return what each rank has shown at its end."""
    found = [line.split(" ", 2) for line in job.lines if line.startswith("shown ")]
    return {int(rank): json.loads(text) for _, rank, text in found}


def calm(train: Train, kind: str) -> dict[int, Any]:
    """Return what each rank shows if none dies."""
    if kind not in _calm:
        _calm[kind] = shown(train(kind, "unhurt", -1))
    return _calm[kind]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [4, 11])
def test_what_is_only_shown_is_whole(check: Check, train: Train, kind: str, at: int) -> None:
    """The rank dies before an update of the first loop, or of the second one."""
    job = check(kind, "forward", at)
    assert "healed in" in job.text and shown(job) == calm(train, kind), job.text


@pytest.mark.parametrize("kind", ["list", "dict", "rows", "object"])
@pytest.mark.parametrize("at", [4, 11])
def test_a_step_whose_end_nobody_has_seen_is_missing_and_that_is_said(
    check: Check, train: Train, kind: str, at: int
) -> None:
    job = check(kind, "updated", at)
    assert "healed in" in job.text and f"lacks step {at} on a rank" in job.text, job.text
    for rank, loops in shown(job).items():
        for loop, (mine, undisturbed) in enumerate(zip(loops, calm(train, kind)[rank], strict=True)):
            at_most = 1 if rank == 1 and loop == at // 7 else 0
            for one, other in zip(mine, undisturbed, strict=True):
                assert lacks(one, other) <= at_most, job.text


def lacks(one: Any, other: Any) -> int:
    """Return how many values one of two curves has less. All that it has must be in the other one."""
    if isinstance(one, dict):
        return max([0, *(lacks(one[key], other[key]) for key in one.keys() | other.keys())])
    assert [item for item in one if item not in other] == []
    return len(other) - len(one)


def test_what_is_too_long_is_said(check: Check) -> None:
    job = check("long", "forward", 4)
    assert "healed in" in job.text and "what the script has gathered in losses to show it" in job.text, job.text


@pytest.mark.parametrize("kind", ["alias", "alias early"])
@pytest.mark.parametrize(("place", "at"), [("forward", 4), ("updated", 4), ("updated", 11)])
def test_what_steps_use_by_another_name_is_right(check: Check, kind: str, place: str, at: int) -> None:
    """Whatever becomes of the job: `check` compares the weights."""
    check(kind, place, at)
