"""The pending decision. It waits for more losses, is dropped when all are back, and is kept when more is wrong."""

from __future__ import annotations

import pytest

from taskd.core import limits
from taskd.core.repair.decision import DecisionCause, DecisionState, NextDecision

WANTED, TROUBLE = DecisionCause.WANTED, DecisionCause.TROUBLE


def test_the_first_fault_waits_for_nothing() -> None:
    decision = NextDecision()
    assert not decision.pending and not decision.is_due(10**18)
    assert decision.gathered_at(1_000, 0, 0) == 1_000
    assert decision.gathered_at(1_000, 0, limits.LEAVE_NS) == 1_000 + limits.LEAVE_NS


@pytest.mark.parametrize(("attempts", "times"), [(1, 1), (2, 4), (3, 16), (4, 64), (9, 64)])
def test_what_follows_a_decision_is_gathered_longer_with_each_attempt(attempts: int, times: int) -> None:
    decision = NextDecision()
    decision.want(WANTED, 1_000)
    decision.decided(1_000)
    gathered = 1_000 + times * limits.GATHER_NS
    assert decision.gathered_at(1_001, attempts, limits.LEAVE_NS) == gathered
    assert decision.gathered_at(gathered, attempts, 0) == gathered, "that was long enough ago"
    decision.restart(1_001)
    assert decision.gathered_at(1_001, attempts, 0) == 1_001, "a manager that was away has decided nothing just now"


def test_it_passes_when_all_return_unless_something_else_is_wrong() -> None:
    decision = NextDecision()
    decision.want(WANTED, 5)
    decision.settle(DecisionCause.RETURNED)
    assert not decision.pending and decision.due_at is None
    decision.want(TROUBLE, 5)
    decision.want(WANTED, 7)
    assert decision.state is DecisionState.TROUBLED and not decision.is_due(6) and decision.is_due(7)
    with pytest.raises(AssertionError, match="RETURNED cannot happen in TROUBLED"):
        decision.settle(DecisionCause.RETURNED)
    decision.decided(7)
    assert decision.state is DecisionState.SETTLED and decision.due_at is None


def test_only_what_waited_for_the_nodes_is_hurried() -> None:
    decision = NextDecision()
    decision.hurry(None, 3)
    assert decision.due_at is None
    decision.want(WANTED, 9)
    decision.hurry(8, 3)
    assert decision.due_at == 9
    decision.hurry(9, 3)
    assert decision.due_at == 3
    decision.restart(4)
    assert decision.due_at == 4 and decision.pending
