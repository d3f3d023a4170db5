"""Starts of all ranks that come to the same end are counted, so that no job starts over for ever."""

from __future__ import annotations

import pytest

from taskd.core import limits
from taskd.core.repair.incident import Incident
from taskd.core.repair.ladder import Loss
from taskd.core.starts_over import StartsOver
from taskd.core.types import GivenUp

SECOND = 1_000_000_000
RAISED = Loss(1, "a", 1, "ValueError: no", 0, home=True, watched_only=False, finished=False)
REFUSED = Loss(2, "a", 0, "it refused", 0, home=True, watched_only=False, finished=False, given_up=GivenUp.REFUSED)
KILLED = Loss(0, "a", -9, "", 0, home=True, watched_only=False, finished=False)


def after(*starts: tuple[int, int, bool]) -> StartsOver:
    """The record of these starts, one each second: after how many steps, how many were saved, whether own."""
    over = StartsOver()
    for number, (steps, saved, own) in enumerate(starts):
        over.count(steps, saved, number * SECOND, own)
    return over


def test_three_that_came_to_the_same_end() -> None:
    over = after((9, -1, True), (10, -1, True), (9, -1, True))
    assert over.in_vain(10, -1, 4 * SECOND, 3) == (
        "after about 9 steps all ranks have started over 3 times in a row, which is the limit"
    )
    assert not over.in_vain(10, -1, 4 * SECOND, 4) and not over.in_vain(11, -1, 4 * SECOND, 3)
    assert not over.in_vain(9, -1, 2 * SECOND + limits.RESTART_FORGOTTEN_NS, 3)
    assert "after about 5 steps all ranks have started over once" in after((5, -1, True)).in_vain(5, -1, SECOND, 1)


def test_the_first_step_counts_too() -> None:
    assert after((0, -1, True), (0, 0, True), (1, -1, True)).in_vain(0, -1, 4 * SECOND, 3)


@pytest.mark.parametrize(
    "other",
    [(30, -1, True), (9, -1, False), (9, 9, True)],
    ids=["later", "a death that comes at any step", "the last checkpoint holds them"],
)
def test_what_ends_a_row(other: tuple[int, int, bool]) -> None:
    same = (9, -1, True)
    assert after(same, same, same).in_vain(9, -1, 4 * SECOND, 3)
    assert not after(same, same, other, same).in_vain(9, -1, 5 * SECOND, 3)
    assert after(other, same, same, same).in_vain(9, -1, 5 * SECOND, 3)


def test_what_the_last_checkpoint_holds_is_not_in_vain() -> None:
    """One step of the quickest rank may be missing in it."""
    over = after((9, -1, True), (9, 0, True), (10, 7, True))
    assert over.in_vain(9, 0, 4 * SECOND, 3) and over.in_vain(9, 7, 4 * SECOND, 3)
    assert not over.in_vain(9, 8, 4 * SECOND, 3) and not over.in_vain(9, 9, 4 * SECOND, 3)


def test_no_job_is_ended_for_a_difference() -> None:
    same = (9, -1, True)
    over = after(same, same, same)
    over.damaged = "w"
    assert not over.in_vain(9, -1, 4 * SECOND, 3)
    over.count(9, -1, 4 * SECOND, own=True)
    assert not over.in_vain(9, -1, 5 * SECOND, 3)


def test_a_slow_drift_is_no_row() -> None:
    """Each is compared with the first one, not with the one before it."""
    assert not after((9, -1, True), (10, -1, True), (11, -1, True)).in_vain(12, -1, 4 * SECOND, 3)


@pytest.mark.parametrize(
    ("kind", "fallen", "own"),
    [
        ("exception", (), True),
        ("refusal", (), True),
        ("proof", (), False),
        ("deadline", (), False),
        ("process", (RAISED,), False),
        ("refusal", (REFUSED,), True),
        ("process", (RAISED, REFUSED), False),
        ("process", (KILLED,), False),
        ("process", (RAISED, KILLED), False),
        ("exception", (KILLED,), False),
    ],
)
def test_what_uses_up_nobodys_restarts(kind: str, fallen: tuple[Loss, ...], own: bool) -> None:
    incident = Incident(1, kind, 0, fallen={loss.rank: loss for loss in fallen})
    assert incident.is_own is own
