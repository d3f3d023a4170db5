"""Tests that the benchmark of pauses and switches measures what it says. They do not judge whether a figure is good."""

from __future__ import annotations

import pytest

from taskd.bench import pause
from taskd.bench.pause import Asked

MS = 1_000_000


def steps(*begins: int) -> list[tuple[int, int]]:
    """Return steps of 10 ms that begin at these milliseconds."""
    return [(begin * MS, (begin + 10) * MS) for begin in begins]


def test_a_pause_is_measured_by_the_steps_around_it() -> None:
    times = [steps(0, 10, 20, 105, 115), steps(1, 11, 22, 108, 118)]
    found = pause._of_pauses([Asked(begin=15 * MS, heard=60 * MS, end=100 * MS)], times)
    values = {name: figure.value for name, figure in found.items()}
    assert values == {
        "stand_over_step_ms": 7,  # 32 - 15, less a step of 10
        "heard_ms": 45,
        "resume_ms": 8,
        "skew_steps": 0,
        "step_ms": 10,
    }


def test_ranks_that_stand_before_different_steps_are_seen() -> None:
    times = [steps(0, 10, 20, 105), steps(0, 10, 105, 115)]
    found = pause._of_pauses([Asked(begin=15 * MS, heard=60 * MS, end=100 * MS)], times)
    assert found["skew_steps"].value == 1


def test_a_switch_costs_the_longest_step_meanwhile() -> None:
    long = [*steps(0, 10), (20 * MS, 55 * MS), *steps(55, 65, 75)]
    calm = steps(0, 10, 20, 30, 40, 50, 60, 70)
    found = pause._of_switches({"out": [(30 * MS, 50 * MS)], "back": [(60 * MS, 80 * MS)]}, [long, calm])
    assert (found["switch_added_ms"].value, found["back_added_ms"].value) == (25, 0)


@pytest.mark.slow
def test_a_job_is_paused_and_ends_with_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause, "PAUSES", 2)
    monkeypatch.setattr(pause, "RANKS", 2)
    monkeypatch.setattr(pause, "WORDS", (64, 2, 100_000))
    figures = pause.measure(["pauses"])
    assert figures["pauses_identical"].value == 1 and figures["skew_steps"].value == 0, figures
    assert len(figures["stand_over_step_ms"].runs) == 2
