"""The benchmark of rails under training measures what it says; whether a figure is good is not asked here."""

from __future__ import annotations

import pytest

from taskd.bench import rail
from taskd.errors import UsageError

MS = 1_000_000


def test_a_fault_costs_the_longest_step_after_it_less_a_normal_one() -> None:
    calm = [(10 * MS * number, 10 * MS * (number + 1)) for number in range(40)]
    hit = [*calm[:5], (50 * MS, 95 * MS), *calm[10:25], (250 * MS, 280 * MS), *calm[28:]]
    runs = rail._Runs(begins=[63 * MS], healed=[150 * MS], back=[200 * MS])
    rail._cost([calm, hit], runs)
    assert runs.cost_ms == [pytest.approx(22)]  # 95 - 63 - 10
    assert runs.disturbed == [1]  # the step of 30 ms, after the rail came back


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no part"):
        rail.measure(["fault"])


@pytest.mark.root
@pytest.mark.slow
def test_uneven_training_is_watched_for_false_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASKD_INNER", "gloo")
    monkeypatch.setattr(rail, "WORDS", (64, 2, 100_000))
    figures = rail.measure(["calm"], seconds=2)
    assert list(figures) == ["false_alarms"]
    assert figures["false_alarms"].value is not None, figures
