"""When nodes are checked, and which."""

from __future__ import annotations

import pytest

from taskd.core import limits
from taskd.core.check.when import Cause, cause_of, due
from taskd.core.policy.rules import Event, Fault

NODES = (2, 4, 6, 9)
FRESH, OLD = limits.SECOND, limits.CHECK_FRESH_NS + 1


@pytest.mark.parametrize(
    ("cause", "concerned", "age_ns", "nodes"),
    [
        (Cause.START, (), None, NODES),
        (Cause.START, (), FRESH, NODES),
        (Cause.NODES, (9,), FRESH, (2, 4, 9)),
        (Cause.NODES, (2, 9), FRESH, NODES),
        (Cause.NODES, (2, 4, 6), FRESH, NODES),
        (Cause.NODES, (9,), OLD, NODES),
        (Cause.NODES, (9,), None, NODES),
        (Cause.NODES, (77,), FRESH, ()),
        (Cause.HARDWARE, (4,), FRESH, (2, 4, 6)),
        (Cause.SOFTWARE, (4,), FRESH, ()),
        (Cause.SOFTWARE, (4,), OLD, NODES),
        (Cause.SOFTWARE, (4,), None, NODES),
    ],
)
def test_who_is_checked(cause: Cause, concerned: tuple[int, ...], age_ns: int | None, nodes: tuple[int, ...]) -> None:
    found = due(cause, NODES, concerned, age_ns)
    assert found.nodes == nodes and found.reason


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault(1, 1, frozenset({Event.EXCEPTION})), Cause.SOFTWARE),
        (Fault(1, 137, frozenset({Event.OUT_OF_MEMORY, Event.PROCESS_EXIT})), Cause.SOFTWARE),
        (Fault(1, 137, frozenset({Event.PROCESS_EXIT})), Cause.SOFTWARE),
        (Fault(1, 135, frozenset({Event.PROCESS_EXIT})), Cause.HARDWARE),
        (Fault(1, 0, frozenset({Event.NODE_LOST})), Cause.HARDWARE),
        (Fault(1, 137, frozenset({Event.HANG})), Cause.HARDWARE),
    ],
)
def test_which_faults_may_come_from_the_hardware(fault: Fault, cause: Cause) -> None:
    assert cause_of(fault) is cause
