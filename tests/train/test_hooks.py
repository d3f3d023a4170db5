"""Counts of hooks: what was registered, removed or left behind, between two looks and in a step that is done again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from taskd.state.hooks import Hooks, Owner
from taskd.state.inside import inside_of
from taskd.state.marks import which_of

Hook = Callable[..., Any]


class Recorder:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def save(self, *given: Any) -> None:
        """Keep it."""
        self.seen.append(given)


def scaled(_module: nn.Module, _given: Any, out: torch.Tensor) -> torch.Tensor:
    """Scale what a module gives."""
    return 2 * out


def beside(recorder: Recorder, *given: Any) -> None:
    """Keep it there."""
    recorder.save(*given)


def closure(recorder: Recorder) -> Hook:
    """Return a function that uses an object."""
    return lambda *given: recorder.save(*given)


model = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
layer: Any = model[0]
REGISTER: dict[str, Callable[[], Any]] = {
    "function": lambda: layer.register_forward_hook(scaled),
    "method": lambda: layer.register_forward_hook(Recorder().save),
    "partial": lambda: layer.register_forward_pre_hook(functools.partial(beside, Recorder())),
    "closure": lambda: layer.register_full_backward_hook(closure(Recorder())),
    "gradient": lambda: layer.weight.register_hook(closure(Recorder())),
    "gathered": lambda: layer.weight.register_post_accumulate_grad_hook(Recorder().save),
    "optimizer": lambda: optimizer.register_step_post_hook(Recorder().save),
    "all": lambda: nn.modules.module.register_module_forward_hook(Recorder().save),
}


def owners() -> tuple[Owner, ...]:
    """Return what may have hooks."""
    return inside_of({"model": model}, {"optimizer": optimizer}).owners


@pytest.mark.parametrize("register", REGISTER.values(), ids=REGISTER)
def test_each_kind_is_counted(register: Callable[[], Any]) -> None:
    hooks, there = Hooks(), owners()
    assert hooks.look(there) == {}
    with register():
        found = hooks.look(there)
        assert len(found) == 1
        hooks.expect(found, found, there)
        assert hooks.unlike(there, is_whole=True) == []
        with register():
            assert hooks.look(there) != found
    assert hooks.look(there) == {}
    assert hooks.unlike(there, is_whole=False) == [] and len(hooks.unlike(there, is_whole=True)) == 1


def test_what_a_guard_has_registered_is_as_it_should_be() -> None:
    hooks, there = Hooks(), owners()
    with layer.register_forward_hook(scaled):
        hooks.expect({}, {}, there)
        assert hooks.unlike(there, is_whole=True) == []
        with layer.register_forward_hook(scaled):
            assert hooks.unlike(there, is_whole=False), "the step has registered it once more"


def test_what_the_step_registers_for_the_first_time_is_as_it_should_be() -> None:
    hooks, there = Hooks(), owners()
    hooks.expect({}, {}, there)
    with layer.register_forward_hook(scaled):
        assert hooks.unlike(there, is_whole=True) == []


def test_what_the_life_before_has_removed_is_one_too_many() -> None:
    hooks, there = Hooks(), owners()
    with layer.register_forward_hook(scaled):
        first = hooks.look(there)
        hooks.expect(first, dict.fromkeys(first, b""), there)
        assert hooks.unlike(there, is_whole=False)


def test_nothing_is_expected_of_a_new_step() -> None:
    hooks, there = Hooks(), owners()
    with layer.register_forward_hook(scaled):
        hooks.expect({}, hooks.look(there), there)
    hooks.forget()
    assert not hooks.expects and hooks.unlike(there, is_whole=True) == []


class Other(nn.Linear):
    """Another class of a module."""


@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net, "1", nn.GELU()),
        lambda net: net[1]._modules.update(inner=nn.GELU()),
        lambda net: net.insert(1, nn.GELU()),
        lambda net: delattr(net, "1"),
        lambda net: setattr(net[0], "__class__", Other),
        lambda net: setattr(net[0], "forward", torch.relu),
        lambda net: net.register_module("more", None),
    ],
    ids=["replaced", "in a leaf", "inserted", "deleted", "class", "forward", "none"],
)
def test_what_a_model_consists_of_is_compared(change: Callable[[nn.Module], Any]) -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Tanh())
    shapes = [inside_of({"model": net}, {}).shape]
    net.eval().calls = 1  # type: ignore[assignment]
    assert shapes[0].stays
    change(net)
    shapes.append(inside_of({"model": net}, {}).shape)
    assert [one.stays for one in shapes] == [False, True]


def test_which_code_it_is() -> None:
    assert which_of(scaled) is which_of(scaled) != which_of(closure(Recorder()))
    assert which_of(nn.MSELoss()) is which_of(nn.MSELoss()) != which_of(nn.L1Loss())
    assert which_of(Recorder().save) is which_of(Recorder().save)
    assert which_of(Recorder()) is not None and which_of(torch.ones(1)) is None is which_of([1])
