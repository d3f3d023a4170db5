"""How often something may be tried."""

from __future__ import annotations

from taskd.core.budget import Budget

SECOND = 1_000_000_000


def test_the_first_two_wait_for_nothing() -> None:
    budget = Budget(5, 600 * SECOND, SECOND)
    assert budget.free_at(7) == 7
    assert budget.take(7) and budget.take(8)
    assert budget.free_at(9) == SECOND + 8


def test_each_one_waits_twice_as_long() -> None:
    budget, now, waits = Budget(5, 600 * SECOND, SECOND), SECOND, []
    for _ in range(5):
        waits.append((budget.free_at(now) - now) // SECOND)
        now = budget.free_at(now)
        assert budget.take(now)
    assert waits == [0, 0, 1, 2, 4]
    assert budget.free_at(now) == 601 * SECOND, "then the first one must be long ago"


def test_what_may_not_be_is_not_counted() -> None:
    budget = Budget(2, 10 * SECOND)
    assert budget.take(0) and budget.take(0)
    assert not any(budget.take(at) for at in range(1, 100))
    assert budget.take(10 * SECOND)


def test_what_failed_long_ago_is_forgotten() -> None:
    budget = Budget(5, 10 * SECOND, SECOND)
    for at in range(50):
        assert budget.take(20 * at * SECOND)
        assert budget.free_at(20 * at * SECOND) == 20 * at * SECOND
