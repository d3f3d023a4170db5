"""What is computed from a leftover is followed, and nothing of it reaches the weights unseen (state/leftover.py)."""

from __future__ import annotations

import copy
import io
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from taskd.state import leftover
from taskd.state.leftover import LeftOver, LeftOverParameter, begin, follow, is_left_over, used


class Judge:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.used: list[int] = []
        self.held: list[torch.Tensor] = []

    def holds(self, tensors: list[torch.Tensor]) -> bool:
        return any(tensor is one for tensor in tensors for one in self.held)

    def reaches_weights(self) -> None:
        self.told.append("weights")

    def is_read(self) -> None:
        self.told.append("read")

    def is_saved(self) -> None:
        self.told.append("saved")

    def is_used(self, tensor: torch.Tensor) -> None:
        self.used.append(id(tensor))


@pytest.fixture
def judge() -> Iterator[Judge]:
    yield Judge()
    leftover._following.__init__()  # type: ignore[misc]


def left(judge: Judge, *shape: int) -> torch.Tensor:
    """Return a tensor that a step has left."""
    one = torch.ones(*(shape or (3,)))
    follow([one], judge)
    return one


class Doubled(torch.autograd.Function):
    """Doubles, where torch does not ask for the class."""

    @staticmethod
    def forward(context: Any, one: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(2 * one.detach().as_subclass(torch.Tensor).numpy())

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return 2 * gradient


MADE: dict[str, Callable[[torch.Tensor], Any]] = {
    "operator": lambda one: 2 * one + 1,
    "beside": lambda one: torch.ones(3) * one,
    "nested": lambda one: torch.cat([torch.ones(3), one]),
    "function": lambda one: F.linear(one, torch.ones(3, 3)),
    "several": lambda one: one.max(0)[0],
    "view": lambda one: one[1:],
    "data": lambda one: one.data,
    "detached": lambda one: one.detach(),
    "copied": copy.deepcopy,
    "out": lambda one: torch.add(one, 1.0, out=torch.zeros(3)),
    "into": lambda one: torch.zeros(3).add_(one),
    "copied into": lambda one: torch.zeros(3).copy_(one),
    "recurrent": lambda one: nn.GRUCell(3, 3)(torch.ones(1, 3), one.view(1, 3)),
    "a function of the script's own": Doubled.apply,
    "where": lambda one: torch.where(torch.ones(3) > 0, one, torch.zeros(3)),
}


@pytest.mark.parametrize("how", MADE)
def test_what_is_made_of_it_is_a_leftover(judge: Judge, how: str) -> None:
    assert is_left_over(MADE[how](left(judge)))
    assert judge.told == []


INTO: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "item": lambda whole, one: whole.__setitem__(slice(0, 3), one),
    "row": lambda whole, one: whole.view(2, 3)[0].copy_(one),
    "data": lambda whole, one: whole.data[3:].add_(one),
    "out": lambda whole, one: torch.add(one, 1.0, out=whole[:3]),
    "flags": lambda whole, one: whole.view(torch.int32)[:3].__ior__(one.int()),
}


@pytest.mark.parametrize("how", INTO)
def test_what_it_is_written_into_is_a_leftover_as_a_whole(judge: Judge, how: str) -> None:
    whole, one = torch.zeros(6), left(judge)
    alias = whole.view(6)
    INTO[how](whole, one)
    assert is_left_over(whole) and is_left_over(alias)


def test_another_name_for_what_is_overwritten_is_ordinary_again(judge: Judge) -> None:
    one = left(judge, 4)
    alias, part = one.view(2, 2), one[:2]
    alias.copy_(torch.zeros(2, 2))
    assert [is_left_over(each) for each in (one, alias, part)] == [False] * 3
    one = left(judge, 4)
    one[:2].copy_(torch.zeros(2))
    assert is_left_over(one)


ORDINARY: dict[str, Callable[[torch.Tensor], Any]] = {
    "zeros_like": torch.zeros_like,
    "new_ones": lambda one: one.new_ones(2),
    "of its kind": lambda one: torch.ones(3).type_as(one),
    "of its shape": lambda one: torch.ones(3).view_as(one),
    "like it": lambda one: torch.ones(3).to(one),
}


@pytest.mark.parametrize("how", ORDINARY)
def test_what_has_only_its_form_is_none(judge: Judge, how: str) -> None:
    assert type(ORDINARY[how](left(judge))) is torch.Tensor


OVERWRITTEN: dict[str, Callable[[torch.Tensor], Any]] = {
    "copied into": lambda one: one.copy_(torch.zeros(3)),
    "zeroed": lambda one: one.zero_(),
    "drawn anew": lambda one: one.normal_(),
    "all items": lambda one: one.__setitem__(slice(None), 0.0),
    "all rows": lambda one: one.view(1, 3).__setitem__((slice(None), slice(None)), 0.0),
    "data": lambda one: setattr(one, "data", torch.zeros(3)),
    "through data": lambda one: one.data.copy_(torch.zeros(3)),
    "out": lambda one: torch.add(torch.ones(3), 1.0, out=one),
}


@pytest.mark.parametrize("how", OVERWRITTEN)
def test_one_that_is_overwritten_is_an_ordinary_tensor_again(judge: Judge, how: str) -> None:
    one = left(judge)
    OVERWRITTEN[how](one)
    assert type(one) is torch.Tensor
    (one * 2).sum().item()
    assert judge.told == []


def test_one_that_is_overwritten_in_part_is_not(judge: Judge) -> None:
    one = left(judge)
    one[0] = 5.0
    one.add_(torch.ones(3))
    assert type(one) is LeftOver


def test_the_judge_is_asked_before_a_gradient_is_computed(judge: Judge) -> None:
    weight, one = torch.ones(3, requires_grad=True), left(judge)
    (weight * one).sum().backward()
    assert judge.told == ["weights"]
    torch.autograd.grad((weight * one).sum(), weight)
    torch.autograd.backward([(weight * one).sum()])
    assert judge.told == ["weights"] * 3


def test_the_judge_is_asked_before_a_registered_tensor_is_written_into(judge: Judge) -> None:
    one, weight = left(judge), torch.zeros(3)
    judge.held = [weight]
    weight.add_(one)
    weight[:] = one
    torch.mul(one, 2.0, out=weight)
    torch._foreach_add_([weight], [one])
    assert judge.told == ["weights"] * 4
    assert type(weight) is torch.Tensor


def test_an_optimizer_asks_the_judge(judge: Judge) -> None:
    weight = nn.Parameter(torch.zeros(3))
    judge.held = [weight]
    weight.grad = torch.ones(3)
    weight.grad.mul_(left(judge))
    torch.optim.SGD([weight], lr=0.1).step()
    assert "weights" in judge.told


def test_a_hook_of_a_gradient_asks_the_judge(judge: Judge) -> None:
    weight, one = torch.ones(3, requires_grad=True), left(judge)
    weight.register_hook(lambda gradient: gradient * one)
    (2 * weight).sum().backward()
    assert judge.told == ["weights"]


def test_a_backward_may_not_make_a_gradient_of_it(judge: Judge) -> None:
    weight, one = torch.ones(3, requires_grad=True), left(judge)
    weight.register_hook(lambda gradient: 2 * one)
    (2 * weight).sum().backward()
    assert judge.told == ["weights"]


def test_a_hook_that_returns_nothing_may_compute(judge: Judge) -> None:
    weight, norms = torch.ones(3, requires_grad=True), [left(judge, 1)]

    def watches(gradient: torch.Tensor) -> None:
        if len(norms) < 5:
            norms.append(0.9 * norms[-1] + 0.1 * gradient.norm())

    weight.register_hook(watches)
    (2 * weight).sum().backward()
    assert judge.told == []
    assert is_left_over(norms[-1])


@pytest.mark.parametrize(
    "hook",
    [
        lambda _, given, __, one: (given[0] * one,) if given[0] is not None else None,
        lambda _, given, __, one: None if given[0] is None else (given[0] * one,),
        lambda _, given, __, one: (given[0] is not None and (given[0] * one,)) or None,
    ],
)
def test_a_hook_that_may_return_something_may_not(judge: Judge, hook: Callable[..., Any]) -> None:
    layer, one = nn.Linear(3, 3), left(judge)
    layer.register_full_backward_hook(lambda *given: hook(*given, one))
    layer(torch.ones(3, requires_grad=True)).sum().backward()
    assert judge.told == ["weights"]


def test_a_hook_may_sum_up(judge: Judge) -> None:
    weight, one = torch.ones(3, requires_grad=True), left(judge)
    weight.register_hook(lambda gradient: [None, one.add_(gradient)][0])
    (2 * weight).sum().backward()
    assert judge.told == []


@pytest.mark.parametrize("read", [float, bool, torch.Tensor.tolist, torch.Tensor.item, lambda one: one.numpy()])
def test_what_is_read_is_told(judge: Judge, read: Callable[[torch.Tensor], Any]) -> None:
    read(left(judge, 1))
    assert judge.told == ["read"]


def test_what_is_only_shown_looks_like_an_ordinary_tensor(judge: Judge) -> None:
    one, other = left(judge), torch.ones(3)
    assert (repr(one), f"{one}", one.shape, one.dtype, len(one)) == (repr(other), f"{other}", (3,), torch.float32, 3)
    assert judge.told == []


def test_a_file_has_an_ordinary_tensor(judge: Judge) -> None:
    one, file = left(judge), io.BytesIO()
    torch.save({"one": one}, file)
    assert judge.told == ["saved"]
    assert b"taskd" not in file.getvalue()
    assert is_left_over(one)


class Own(torch.Tensor):
    """A tensor of a class with a __torch_function__ of its own."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(function, types, args, kwargs or {})


def test_one_beside_a_tensor_of_another_class_does_no_harm(judge: Judge) -> None:
    one, own = left(judge), torch.ones(3).as_subclass(Own)
    assert type(own + one) is Own
    assert type(one + own) is Own


def test_an_index_of_numpy_does_no_harm(judge: Judge) -> None:
    one = left(judge, 4)
    one[numpy.array([0, 2])] = 5.0
    assert is_left_over(one)


def test_the_judge_may_go() -> None:
    judge = Judge()
    one = left(judge)
    gone = weakref.ref(judge)
    del judge
    assert gone() is None
    assert (2 * one).tolist() == [2.0, 2.0, 2.0]
    leftover._following.__init__()  # type: ignore[misc]


def test_a_parameter_stays_a_parameter(judge: Judge) -> None:
    one = nn.Parameter(torch.ones(3))
    follow([one], judge)
    assert type(one) is LeftOverParameter
    assert isinstance(one, nn.Parameter)
    assert type(one * 2) is LeftOver
    with torch.no_grad():
        one.zero_()
    assert type(one) is nn.Parameter


def test_those_that_were_used_are_known(judge: Judge) -> None:
    one, other = torch.ones(3), torch.ones(3)
    follow([one, other], judge)
    assert one.shape == other.shape
    assert not used()
    both = one * 2
    assert is_left_over(both)
    assert used() == {id(one)}
    begin()
    assert not used()
    both += one
    assert used() == {id(one)} == {*judge.used}
    assert len(judge.used) == 1
