"""Tests that the record of a set-up ends, whatever the script does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from taskd import _c10d
from taskd.worker.unled import UPDATES, Unled
from tests.train.workers import setup_record
from tests.train.workers.setup_record import State


@dataclass
class Script:
    has_session: bool = False


@pytest.fixture
def record() -> Iterator[int]:
    descriptor = os.memfd_create("record", os.MFD_CLOEXEC)
    _c10d.control.start_record(descriptor)
    yield descriptor
    _c10d.control.stop_record()
    os.close(descriptor)


def update(times: int) -> None:
    weight = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(times):
        weight.grad = torch.ones(2)
        optimizer.step()


def state_of(descriptor: int) -> State:
    return setup_record.read(descriptor).state


def test_a_script_that_trains_without_a_session_is_recorded_no_longer(record: int) -> None:
    Unled(_c10d.control, Script()).watch()
    register_optimizer_step_post_hook(lambda *_: None)  # another hook after it
    update(UPDATES - 1)
    assert _c10d.control.recording and state_of(record) is State.OPEN
    update(1)
    assert not _c10d.control.recording and state_of(record) is State.GIVEN_UP
    with pytest.raises(ValueError, match=r"trained so long before taskd\.session\(\)"):
        _c10d.control.sandbox(record)


def test_a_session_ends_its_record_by_itself(record: int) -> None:
    Unled(_c10d.control, Script(has_session=True)).watch()
    update(2 * UPDATES)
    assert _c10d.control.recording and state_of(record) is State.OPEN
