"""Whether an agent sees that a process works: real processes that compute, move bytes, or wait."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from taskd.agent.effort import MOVED_BYTES, SAMPLE_NS, Effort, moved_bytes, processor_time_ns
from tests.patience import PATIENCE_S

PROGRAM = """
import os, sys
for line in sys.stdin:
    if line == "compute\\n":
        total = 0
        for number in range(3_000_000):
            total += number
    elif line == "read\\n":
        with open("/dev/zero", "rb") as zeros:
            zeros.read(8 << 20)
    print(line, end="", flush=True)
"""


class Subject:
    """A process that does what it is told, and reports when it has done so."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self.does("wake")

    def does(self, what: str) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        assert self.process.stdout.readline() == f"{what}\n"


@pytest.fixture
def subject() -> Iterator[Subject]:
    made = Subject()
    yield made
    assert made.process.stdin is not None and made.process.stdout is not None
    made.process.stdin.close()
    made.process.wait(PATIENCE_S)
    made.process.stdout.close()


def test_one_that_computes(subject: Subject) -> None:
    effort = Effort(subject.process.pid)
    assert effort.look(0, 0) == 0, "a first look compares with nothing"
    subject.does("compute")
    assert processor_time_ns(subject.process.pid) > SAMPLE_NS // 50
    assert effort.look(SAMPLE_NS, 0) == 1


def test_one_that_moves_bytes(subject: Subject) -> None:
    effort = Effort(subject.process.pid)
    effort.look(0, 0)
    before = moved_bytes(subject.process.pid)
    subject.does("read")
    assert moved_bytes(subject.process.pid) - before >= MOVED_BYTES
    assert effort.look(1_000 * SAMPLE_NS, 0) == 1, "so long that its processor's time counts for nothing"


def test_one_that_waits(subject: Subject) -> None:
    effort = Effort(subject.process.pid)
    effort.look(0, 0)
    subject.does("nothing")
    assert effort.look(1_000 * SAMPLE_NS, 0) == 0


def test_bytes_on_the_rails_are_work_too(subject: Subject) -> None:
    effort = Effort(subject.process.pid)
    effort.look(0, 5 * MOVED_BYTES)
    assert effort.look(1_000 * SAMPLE_NS, 5 * MOVED_BYTES + 1) == 0
    assert effort.look(2_000 * SAMPLE_NS, 7 * MOVED_BYTES) == 1
    assert effort.look(3_000 * SAMPLE_NS, 0) == 1, "a transport that is gone takes its count along"


def test_it_looks_no_more_often_than_it_must(subject: Subject) -> None:
    effort = Effort(subject.process.pid)
    began = time.monotonic_ns()
    effort.look(began, 0)
    subject.does("compute")
    assert effort.look(began + SAMPLE_NS - 1, 0) == 0
    assert effort.look(began + SAMPLE_NS, 0) == 1


def test_one_that_is_gone(subject: Subject) -> None:
    pid = subject.process.pid
    subject.process.kill()
    subject.process.wait(PATIENCE_S)
    effort = Effort(pid)
    assert processor_time_ns(pid) == 0 and moved_bytes(pid) == 0
    assert effort.look(0, 0) == effort.look(SAMPLE_NS, 0) == 0
