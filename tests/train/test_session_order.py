"""Tests scripts that do things in an unusual order: none of them hits an assertion of the table of step states.

They run in one process, as in test_session.py. What is refused gets an error with a clear sentence. All else trains.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from taskd.errors import UsageError
from taskd.worker import resilient as resilience
from taskd.worker.heal import Loop
from taskd.worker.session import Session
from taskd.worker.step import Step
from taskd.worker.step_state import STEP, StepEvent, StepState
from tests.train.test_session import FakeRepair

DATA = [torch.ones(2, 4) * at for at in range(1, 7)]


class Script:
    """A small model and its session."""

    def __init__(self, repair: FakeRepair | None = None, optimizer: Callable[..., Any] = torch.optim.SGD) -> None:
        torch.manual_seed(0)
        self.repair = repair or FakeRepair()
        self.model = nn.Linear(4, 4)
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        self.session = self.repair.session = Session(self.repair)
        self.session.register(model=self.model, optimizer=self.optimizer)

    def body(self, step: Step, x: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.repair.here(step.number, "before")
        self.optimizer.step()
        self.repair.here(step.number, "after")

    def train(self, steps: Any, until: int = -1) -> None:
        for step in steps:
            with step as x:
                self.body(step, x)
            if step.number == until:
                break


def test_a_loop_that_was_left_may_be_held() -> None:
    script = Script()
    held = script.session.steps(DATA)
    script.train(held, until=2)
    script.train(script.session.steps(DATA))
    assert script.session.ends == [3, 9]
    held.close()


def test_a_loop_that_was_left_may_be_collected_in_the_middle_of_another_sessions() -> None:
    left, script = Script(), Script()
    held = left.session.steps(DATA)
    left.train(held, until=2)
    steps = script.session.steps(DATA)
    script.train(steps, until=2)
    backward = torch.autograd.backward
    held.close()
    assert torch.autograd.backward is backward
    script.train(steps)
    assert script.session.ends == [6]


def test_a_loop_that_was_left_before_its_step_is_no_loop_any_more() -> None:
    script = Script()
    held = script.session.steps(DATA)
    for step in held:
        if step.number == 2:
            break
        with step as x:
            script.body(step, x)
    assert script.session.between(lambda: 7) == 7
    with step as x:
        script.body(step, x)
    script.train(script.session.steps(DATA))
    assert script.session.ends == [3, 9]


def test_a_step_may_outlive_its_loop() -> None:
    script = Script()
    step = next(script.session.steps(DATA))
    with step as x:
        script.body(step, x)
    script.train(script.session.steps(DATA))
    assert script.session.ends == [1, 7]


def test_a_loop_behind_calls_of_a_resilient_function(monkeypatch: pytest.MonkeyPatch) -> None:
    script = Script()
    monkeypatch.setattr(resilience, "session", lambda: script.session)

    @resilience.resilient
    def step(x: torch.Tensor) -> None:
        script.optimizer.zero_grad()
        script.model(x).sum().backward()
        script.optimizer.step()

    for x in DATA[:3]:
        step(x)
    script.train(script.session.steps(DATA))
    assert script.session.ends == [3, 9]
    with pytest.raises(UsageError, match="after a loop over"):
        step(DATA[0])


def test_loops_inside_of_each_other_are_refused() -> None:
    script = Script()
    with pytest.raises(UsageError, match="another loop over steps"):
        for step in script.session.steps(DATA):
            with step as x:
                script.body(step, x)
            script.train(script.session.steps(DATA[:2]))
    script = Script()
    with pytest.raises(UsageError, match="begins inside of `with step:`"):
        for step in script.session.steps(DATA):
            with step as x:
                script.train(script.session.steps(DATA))
    script = Script()
    with pytest.raises(UsageError, match="another loop over steps"):
        for one, other in zip(script.session.steps(DATA), script.session.steps(DATA), strict=True):
            for step in (one, other):
                with step as x:
                    script.body(step, x)


@pytest.mark.parametrize("given_up", [False, True])
def test_the_next_step_is_not_to_be_had_inside_of_one(given_up: bool) -> None:
    script = Script(FakeRepair(2 if given_up else -1, "look"))
    steps = script.session.steps(DATA)
    with pytest.raises(UsageError, match="asked for inside of `with step:`"):
        for step in steps:
            with step as x:
                script.body(step, x)
                if step.number == 2:
                    script.repair.quietly(2, "look")
                    next(steps)


def test_a_loop_may_be_closed_inside_of_its_step() -> None:
    script = Script()
    steps = script.session.steps(DATA)
    for step in steps:
        with step as x:
            script.body(step, x)
            if step.number == 2:
                steps.close()
    script.train(script.session.steps(DATA))
    assert script.session.ends == [3, 9]


@pytest.mark.parametrize("again", [False, True])
def test_what_a_step_was_to_do_fails_in_a_step_that_is_given_up(again: bool) -> None:
    """The error is raised after the repair, and the script may go on."""
    script = Script(FakeRepair(3, "after"))
    fails = [OSError("disk full")]

    def write(at: int) -> None:
        if at == 3 and fails:
            raise fails.pop()

    caught = []
    for step in script.session.steps(DATA):
        for _ in range(1 + again):
            try:
                with step as x:
                    step.on_commit(write, step.number)
                    script.body(step, x)
                break
            except OSError:
                caught.append(step.number)
    assert caught == [3] and script.repair.repairs == [4] and script.session.updates == 6


class Interrupted(FakeRepair):
    """A repair in which a signal handler raises an error, the first time that this rank waits in it."""

    error: BaseException | None = TimeoutError()

    def run(self, loop: Loop) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        super().run(loop)


def test_an_error_leaves_a_repair_and_the_loop_goes_on_with_it() -> None:
    script = Script(Interrupted(3, "before"))
    for step in script.session.steps(DATA):
        with contextlib.suppress(TimeoutError), step as x:
            script.body(step, x)
    assert script.repair.repairs == [3] and script.session.updates == 6


def test_a_script_may_do_a_step_again_with_another_loss() -> None:
    """It catches its own error, as one does that lowers a scale. No repair has put anything back."""
    script = Script()
    scale = 4.0
    for step in script.session.steps(DATA):
        with contextlib.suppress(OverflowError), step as x:
            (script.model(x).sum() * scale).backward()
            if scale > 1:
                scale /= 2
                raise OverflowError
            script.optimizer.step()
    assert script.session.updates == 6 and scale == 1


def test_a_step_is_not_entered_before_its_repair_is_over() -> None:
    script = Script(Interrupted(3, "before"))
    with pytest.raises(UsageError, match="an error has left the repair"):
        for step in script.session.steps(DATA):
            for _ in range(2):
                with contextlib.suppress(TimeoutError), step as x:
                    script.body(step, x)


def test_an_exit_in_a_repair_stays_that_exit() -> None:
    script = Script(Interrupted(3, "before"))
    script.repair.error = SystemExit(3)  # type: ignore[attr-defined]
    with pytest.raises(SystemExit, match="3"), contextlib.closing(script.session.steps(DATA)) as steps:
        script.train(steps)


def test_an_optimizer_on_another_thread_ends_in_the_next_step() -> None:
    begun, may_end = threading.Event(), threading.Event()

    class Late(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            begun.set()
            may_end.wait()

    script = Script(optimizer=Late)
    failed: list[BaseException] = []

    def update() -> None:
        try:
            script.optimizer.step()
        except BaseException as error:
            failed.append(error)

    threads: list[threading.Thread] = []
    for step in script.session.steps(DATA):
        with step as x:
            if threads:
                may_end.set()
                threads[-1].join()
                may_end.clear()
            script.optimizer.zero_grad(set_to_none=False)
            script.model(x).sum().backward()
        begun.clear()
        threads.append(threading.Thread(target=update))
        threads[-1].start()
        begun.wait()
    may_end.set()
    threads[-1].join()
    assert not failed


def test_nothing_is_kept_of_steps_in_which_something_is_not_understood() -> None:
    script = Script()
    script.session._registered.doubts.begin("a strange tensor")
    script.train(script.session.steps(DATA * 5))
    assert script.session.updates == 30 and not script.session._registered.calls._made


def test_whatever_a_script_can_do_has_a_row() -> None:
    """Checks the events that a script causes in any state. The other events come from the transaction itself."""
    from_script = {
        StepEvent.HANDED_OUT: {StepState.IDLE, StepState.LOOP},
        StepEvent.TAKEN_BACK: set(StepState),
        StepEvent.ENTERED: {StepState.IDLE, StepState.LOOP},
        StepEvent.OPTIMIZER_BEGAN: {StepState.BODY, StepState.UPDATING, StepState.APPLIED},
        StepEvent.OPTIMIZER_ENDED: {StepState.BODY, StepState.UPDATING, StepState.APPLIED},
    }
    lacking = [
        (event, state) for event, states in from_script.items() for state in states if not STEP.allows(state, event)
    ]
    assert not lacking
