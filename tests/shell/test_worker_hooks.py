"""Progress marks, with and without a worker: the script reports them, or taskd follows torch's optimizers."""

from __future__ import annotations

import sys

import pytest

from taskd import _native
from taskd.core.types import Phase
from taskd.worker import hooks


@pytest.fixture
def page():
    import torch.optim  # noqa: F401 (attach follows torch only where the script has imported it)

    page = _native.Page.create(0, 1)
    hooks.attach(page)
    yield page
    hooks.detach()


def at(page) -> tuple[int, int]:
    beat = page.read()
    return beat.step, beat.phase


def test_without_a_worker_the_calls_do_nothing():
    hooks.step_end(3)
    hooks.optimizer_begin(4)
    hooks.optimizer_end(4)


def test_told_steps_and_phases(page):
    hooks.optimizer_begin(0)
    assert at(page) == (0, Phase.OPTIMIZER)
    hooks.optimizer_end(0)
    assert at(page) == (0, Phase.APPLIED)
    hooks.step_end(0)
    assert at(page) == (0, Phase.BETWEEN)
    hooks.optimizer_begin()
    hooks.optimizer_end()
    assert at(page) == (1, Phase.APPLIED)
    hooks.step_end(1)
    assert at(page) == (1, Phase.BETWEEN)


@pytest.mark.parametrize("wrong", ["3", None, 2.5, -7, 2**80, object()])
def test_a_wrong_number_is_left_aside(page, wrong):
    hooks.step_end(5)
    hooks.step_end(wrong)
    hooks.optimizer_begin(wrong)
    assert at(page) == (5, Phase.BETWEEN)


def small_model():
    import torch.optim

    model = torch.nn.Linear(2, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.optim.AdamW(model.parameters())


def update(model, *optimizers):
    model(__import__("torch").ones(1, 2)).sum().backward()
    for optimizer in optimizers:
        optimizer.step()


def test_steps_of_a_script_that_says_nothing_are_counted_once_however_many_optimizers(page):
    model, first, second = small_model()
    for number in range(4):
        update(model, first, second)
        assert at(page) == (number, Phase.APPLIED)
    first.step()
    assert at(page)[0] == 4


def test_the_script_s_own_number_wins_over_the_count(page):
    model, first, second = small_model()
    update(model, first)
    hooks.step_end(100)
    update(model, first, second)
    assert at(page) == (101, Phase.APPLIED)
    hooks.step_end(101)
    hooks.optimizer_begin(102)
    update(model, first, second)
    assert at(page)[0] == 102
    hooks.optimizer_end(102)
    assert at(page) == (102, Phase.APPLIED)


def test_an_update_inside_of_a_marked_step_belongs_to_it(page):
    model, first, _ = small_model()
    for number in range(3):
        hooks.mark_step(number, Phase.BODY)
        update(model, first)
        assert at(page) == (number, Phase.APPLIED)
        hooks.mark_step(number, Phase.BETWEEN)
    update(model, first)
    assert at(page) == (3, Phase.APPLIED)


def test_a_leader_that_was_thrown_away_is_replaced(page):
    model, first, second = small_model()
    update(model, first)
    del first
    update(model, second)
    assert at(page)[0] == 1


def test_detached_hooks_are_out_of_torch():
    model, first, _ = small_model()
    registered = sys.modules["torch.optim.optimizer"]._global_optimizer_pre_hooks
    before = len(registered)
    page = _native.Page.create(0, 1)
    hooks.attach(page)
    assert len(registered) == before + 1
    hooks.detach()
    assert len(registered) == before
    update(model, first)
    assert page.read().step == 0 and page.read().progress_ns == 0
