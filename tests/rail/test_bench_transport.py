"""Tests that the benchmark of the transport measures what it says: on small cases, in seconds, on gloo where possible.

They do not judge whether a figure is good.
"""

from __future__ import annotations

import pytest

from taskd.bench import transport
from taskd.errors import UsageError

MS = 1_000_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SIDES", ("gloo", "gloo"))
    monkeypatch.setattr(transport, "TURNS", 3)
    monkeypatch.setattr(transport, "STEPS", 3)
    monkeypatch.setattr(transport, "SIZES", (2,))
    cases = [(name, kind, 1 << 10, 3) for name, kind, *_ in transport.CASES]
    monkeypatch.setattr(transport, "CASES", tuple(cases))


@pytest.mark.usefixtures("small")
def test_ratios_of_one_backend_over_itself() -> None:
    figures = transport.measure(["collectives", "ddp"])
    names = [f"{name}_ratio" for name, *_ in transport.CASES] + ["ddp_ratio"]
    assert sorted(figures) == sorted([*names, *(f"{name}_2_ranks" for name in names)])
    for name, figure in figures.items():
        assert figure.value is not None and len(figure.runs) == 3, (name, figure)
        assert 0.01 < figure.value < 100, (name, figure)


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="no part"):
        transport.measure(["colectives"])


def test_a_fault_costs_the_longest_operation_that_it_hit() -> None:
    calm = [(10 * MS * number, 10 * MS * (number + 1)) for number in range(20)]
    hit = [*calm[:5], (50 * MS, 95 * MS), (95 * MS, 100 * MS)]
    assert transport._cost_ms([calm, hit], 63 * MS, 200 * MS) == pytest.approx(32)  # 95 - 63: it began before the fault
    assert transport._cost_ms([calm], 63 * MS, 200 * MS) == pytest.approx(10)  # nothing was hit: the time of one alone
    assert transport._cost_ms([hit], 20 * MS, 40 * MS) == pytest.approx(10)  # the fault ended before: not counted


def test_an_operation_begins_when_the_last_rank_has_come() -> None:
    assert transport._together(((1 * MS, 9 * MS), (4 * MS, 8 * MS))) == (4 * MS, 9 * MS)


def test_the_worse_ratio_stands_for_both() -> None:
    good, bad = transport.median([0.5], "ratio"), transport.median([1.5], "ratio")
    none = transport.unmeasured("ratio", "why")
    assert transport._worse([good, bad]) is bad
    assert transport._worse([none, bad]) is none
