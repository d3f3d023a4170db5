"""How long the manager waits for a rank in a stage, by what the rank shows: each row of the module's list."""

from __future__ import annotations

import pytest

from taskd.core.limits import LONGEST_STAGE_NS, MS, SECOND
from taskd.core.repair.patience import Patience
from taskd.core.types import Phase
from tests.core.builders import rank_report

ALLOWED = 60 * SECOND
BEGAN = 1_000 * SECOND


def patience(step_ms: int = 100) -> Patience:
    """Return the patience of a stage that has just begun. Every rank has reported its state."""
    one = Patience()
    one.begin(BEGAN)
    for rank in range(3):
        one.saw(rank_report(rank, step_ms=step_ms, work=7), BEGAN)
    return one


def test_who_shows_nothing_has_its_allowance() -> None:
    one = patience()
    for second in range(0, 50, 2):
        one.saw(rank_report(0, work=7, beat_age_ms=second), BEGAN + second * SECOND)
    assert one.until(0, ALLOWED, steps=True) == BEGAN + ALLOWED
    assert not one.works(0)


@pytest.mark.parametrize("shown", [{"step": 6}, {"phase": Phase.PARKED}, {"work": 8}], ids=str)
def test_what_moves_begins_the_allowance_anew(shown: dict[str, int | Phase]) -> None:
    one = patience()
    one.saw(rank_report(0, **{"work": 7, **shown}), BEGAN + 40 * SECOND)
    assert one.until(0, ALLOWED, steps=True) == BEGAN + 40 * SECOND + ALLOWED
    assert one.works(0)
    assert one.until(1, ALLOWED, steps=True) == BEGAN + ALLOWED


def test_a_first_report_shows_nothing_yet() -> None:
    """A newcomer's first report, for example: there is no earlier report to compare it with."""
    one = patience()
    one.saw(rank_report(5, work=40), BEGAN + 30 * SECOND)
    assert one.until(5, ALLOWED, steps=True) == BEGAN + ALLOWED


def test_three_steps_of_the_job_are_allowed_where_a_step_is_awaited() -> None:
    one = patience(step_ms=75_000)
    assert one.until(0, ALLOWED, steps=True) == BEGAN + 3 * 75 * SECOND
    assert one.until(0, ALLOWED, steps=False) == BEGAN + ALLOWED


def test_one_that_spins_without_end_is_not_waited_for_without_end() -> None:
    one = patience()
    for minute in range(40):
        one.saw(rank_report(0, work=8 + minute), BEGAN + minute * 60 * SECOND)
    assert one.until(0, ALLOWED, steps=True) == BEGAN + LONGEST_STAGE_NS


def test_three_steps_are_allowed_even_where_they_take_longer_than_any_wait() -> None:
    one = patience(step_ms=LONGEST_STAGE_NS // MS)
    assert one.until(0, ALLOWED, steps=True) == BEGAN + 3 * LONGEST_STAGE_NS


def test_the_others_may_take_twice_what_the_quickest_took() -> None:
    one = patience()
    one.followed(BEGAN + 70 * SECOND)
    one.followed(BEGAN + 100 * SECOND)
    assert one.until(0, ALLOWED, steps=True) == BEGAN + 140 * SECOND


def test_a_new_stage_begins_with_nothing_shown() -> None:
    one = patience(step_ms=30_000)
    one.saw(rank_report(0, work=8), BEGAN + 10 * SECOND)
    one.followed(BEGAN + 200 * SECOND)
    one.begin(BEGAN + 300 * SECOND)
    assert one.until(0, ALLOWED, steps=False) == BEGAN + 300 * SECOND + ALLOWED
    assert one.until(0, ALLOWED, steps=True) == BEGAN + 300 * SECOND + 90 * SECOND  # the steps' length is still known
    assert one.waited_ns(BEGAN + 301 * SECOND) == SECOND
