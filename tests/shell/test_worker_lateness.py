"""How a rank reads the guard's announcements: which are failures, and that lateness is reported and left alone."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

from taskd.core.messages import Evidence
from taskd.core.types import EvidenceKind
from taskd.core.worker import Worker
from taskd.worker import lateness
from taskd.worker.failures import Failures
from taskd.worker.orders import Orders

GROUP = "0@0-3"
LATE = "no answer within 51234 ms, far longer than it ever took in this job"
SENTENCE = "rank 2 has waited 51 s for allreduce #812 of group 0@0-3, at least ten times its usual longest"
Announced = tuple[str, str, int, str, int, int]


class Mode(Enum):
    NORMAL = 0


class Ended(Exception):
    """There are no more announcements."""


class NotedControl:
    """A fake of the guard's control: it gives one announcement after the other, and records what is let go."""

    mode = Mode.NORMAL

    def __init__(self, event_fd: int, *announced: Announced) -> None:
        self.event_fd = event_fd
        self.left = list(announced)
        self.let_go: list[int] = []

    def take_events(self) -> list[Announced]:
        if not self.left:
            raise Ended
        return [self.left.pop(0)]

    def resume(self, epoch: int) -> None:
        self.let_go.append(epoch)


@pytest.fixture
def ringing() -> Iterator[int]:
    """A descriptor that always has something to read."""
    event_fd = os.eventfd(1)
    yield event_fd
    os.close(event_fd)


def heard_of(control: NotedControl) -> list[Evidence]:
    """Return what rank 2 reports about the announcements if nothing is repaired."""
    said: list[Any] = []

    def say(message: Any) -> bool:
        said.append(message)
        return True

    orders = Orders(Worker(2, 1, 1, newcomer=False), control, say)
    with pytest.raises(Ended):
        Failures(orders, control, say, unrepaired_seconds=0.0).watch()
    return said


def test_what_is_late_is_told_and_left_alone(ringing: int, caplog: pytest.LogCaptureFixture) -> None:
    control = NotedControl(ringing, (GROUP, "allreduce", 812, LATE, 1, 0), (GROUP, "recv", 0, LATE, 1, 0))
    with caplog.at_level(logging.WARNING, "taskd"):
        late, message = heard_of(control)
    assert control.let_go == [], "operations were let go, though none has failed"
    assert late.kind is message.kind is EvidenceKind.COLLECTIVE_LATE and (late.rank, late.witness) == (-1, 2)
    assert (late.operation, late.waited_ms) == ("allreduce #812 of group 0@0-3", 51_234)
    assert lateness.sentence(late) == f"{SENTENCE}; nothing has failed"
    assert message.operation == "recv of group 0@0-3"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("Connection closed by peer [10.0.0.2]:4711", EvidenceKind.COLLECTIVE_ERROR),
        ("no answer within 51234 ms", EvidenceKind.COLLECTIVE_TIMEOUT),
        (f"rank 1 said: {LATE}", EvidenceKind.COLLECTIVE_TIMEOUT),
        ("something else", EvidenceKind.COLLECTIVE_ERROR),
    ],
)
def test_what_has_failed_is_let_go_where_nobody_repairs_it(ringing: int, words: str, kind: EvidenceKind) -> None:
    quiet = (GROUP, "allreduce", 813, LATE, 4, 0)
    control = NotedControl(ringing, (GROUP, "allreduce", 812, words, 3, 0), quiet)
    failed, late = heard_of(control)
    assert (failed.kind, late.kind) == (kind, EvidenceKind.COLLECTIVE_LATE)
    assert failed.reason == f"allreduce 812 of group {GROUP}: {words}"
    assert control.let_go == [3]
