"""Tests that the benchmark of rails under training measures what it says.

They do not judge whether a figure is good.
"""

from __future__ import annotations

import pytest

from taskd.bench import rail
from taskd.errors import UsageError

MS, SECOND = 1_000_000, 1_000_000_000


def test_a_fault_costs_the_longest_step_after_it_less_a_normal_one() -> None:
    calm = [(10 * MS * number, 10 * MS * (number + 1)) for number in range(40)]
    hit = [*calm[:5], (50 * MS, 95 * MS), *calm[10:25], (250 * MS, 280 * MS), *calm[28:]]
    fault = rail._Fault("down", True, begin=63 * MS, healed=150 * MS, back=500 * MS)
    alone = rail._Fault("down", True, begin=63 * MS, healed=150 * MS)
    rail._cost([calm, hit], [fault, alone])
    assert fault.cost_ms == alone.cost_ms == pytest.approx(22)  # 95 - 63 - 10
    assert (fault.disturbed, fault.usual) == (1, 0)  # the step of 30 ms, when the rail came back
    assert alone.disturbed == 0  # its rail did not come back


def test_all_figures_are_there_whatever_has_failed() -> None:
    names = {f"{name}_p{share}_ms" for name, _ in rail.GOALS.values() for share in (50, 99)}
    names |= {"bit_equal_share", "back_s", "back_disturbed_ranks"}
    nothing = rail._figures([], "there can be no hosts")
    assert set(nothing) == names and all(figure.value is None and figure.reason for figure in nothing.values())
    first = rail._Fault("down", True, begin=1, healed=2 * SECOND, back=5 * SECOND, cost_ms=20.0)
    again = rail._Fault("reset", False, begin=1, healed=2 * SECOND, back=9 * SECOND, cost_ms=5.0, disturbed=2, usual=1)
    found = rail._figures([rail._Run([first, again], True), rail._Run([], False, "it broke")], "")
    values = {name: figure.value for name, figure in found.items()}
    assert values["link_down_p50_ms"] == 20 and values["reset_p99_ms"] == 5 and values["silence_p50_ms"] is None
    assert values["back_s"] == 3 and values["back_disturbed_ranks"] == 1 and values["bit_equal_share"] == 0.5
    assert found["back_disturbed_ranks"].reason == "1.00 at 2 returns, 0.50 a second before; 2 at most"
    assert "it broke" in found["bit_equal_share"].reason


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
