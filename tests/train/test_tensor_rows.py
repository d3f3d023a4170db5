"""Small tensors that steps hand on are kept: a step that is done again, and a newcomer, begin with what they held."""

from __future__ import annotations

import weakref
from collections import UserDict, UserList
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from taskd.state.coverage import Coverage
from taskd.state.plain import MOST_OF_TENSORS
from taskd.state.record import Occasion
from taskd.state.replica import Replica
from taskd.state.rows import anew, as_they_were, in_place
from taskd.state.variables import Variables
from taskd.worker.session import Session
from tests.train.test_session import FakeRepair, Newcomer, Recording

STEPS = 6


class Recurrent(nn.Module):
    """Hands its hidden state on by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.hidden = nn.Linear(4, 4), torch.zeros(2, 4)

    def forward(self, x: Any) -> Any:
        y = torch.tanh(self.layer(x) + self.hidden)
        self.hidden = y.detach()
        return y


class Averages:
    """An average of the weights, as scripts write it."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = {name: one.detach().clone() for name, one in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, one in model.named_parameters():
            self.shadow[name].mul_(0.9).add_(one.detach(), alpha=0.1)


def trained(repair: FakeRepair) -> list[Any]:
    """Train. Return what each step has found, and the weights at the end."""
    torch.manual_seed(1)
    model = nn.Sequential(Recurrent(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = repair.session = Session(repair)
    session.register(model=model, optimizer=optimizer)
    first = torch.zeros(2, 4)
    hidden, spread, window = first, np.ones(4), [torch.ones(4), torch.ones(4)]
    slow = [one.detach().clone() for one in model.parameters()]
    best: dict[str, Any] = {}
    average = Averages(model)
    found = UserDict[int, Any]()  # no repair looks into it
    for step in session.steps([torch.full((2, 4), 0.1 * at) for at in range(STEPS)]):
        with step as x:
            found[step.number] = [float(one.sum()) for one in (hidden, spread, *window, *slow, model[0].hidden, first)]
            found[step.number] += [float(one.sum()) for one in average.shadow.values()]
            optimizer.zero_grad()
            y = model(x + hidden)
            hidden = torch.tanh(y + hidden).detach()
            spread = 0.9 * spread + float(y.sum())
            window = [window[1], y.detach().mean(0) + window[0]]
            repair.here(step.number, "start")
            (y.square().mean() * float(spread.mean()) + window[0].sum()).backward()
            for one, other in zip(slow, model.parameters(), strict=True):
                one.mul_(0.5).add_(other.detach(), alpha=0.5)
            repair.here(step.number, "reduced")
            optimizer.step()
            average.update(model)
        if not best or float(y.sum()) < 0:
            best = {name: one.detach().clone() for name, one in model.named_parameters()}
    return [*(found[number] for number in sorted(found)), [float(one.sum()) for one in model.parameters()]]


@pytest.mark.parametrize("place", ["start", "reduced"])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_step_that_is_done_again_finds_them(at: int, place: str) -> None:
    wanted = trained(FakeRepair())
    repair = FakeRepair(at, place)
    assert trained(repair) == wanted
    assert repair.repairs


@pytest.mark.parametrize("at", [2, 4])
def test_a_newcomer_begins_with_them(at: int) -> None:
    source = Recording(at, Occasion.START)
    wanted = trained(source)
    found = trained(Newcomer(source))
    assert found[-len(wanted[at:]) :] == wanted[at:]


def with_graphs(repair: FakeRepair, goes_on: bool = False) -> list[Any]:
    """Train as examples for recurrent networks do: each step cuts the graph of the hidden state, or does not."""
    torch.manual_seed(1)
    model = nn.GRU(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = repair.session = Session(repair)
    session.register(model=model, optimizer=optimizer)
    hidden = torch.zeros(1, 2, 4)
    found = UserDict[int, Any]()
    for step in session.steps([torch.full((3, 2, 4), 0.1 * at) for at in range(STEPS)]):
        with step as x:
            found[step.number] = hidden.tolist()
            hidden = hidden if goes_on else hidden.detach()
            optimizer.zero_grad()
            y, hidden = model(x, hidden)
            repair.here(step.number, "start")
            (y.square().mean() + hidden.sum()).backward(retain_graph=goes_on)
            repair.here(step.number, "reduced")
            optimizer.step() if not goes_on else None
    return [*(found[number] for number in sorted(found)), [one.tolist() for one in model.parameters()]]


@pytest.mark.parametrize("place", ["start", "reduced"])
@pytest.mark.parametrize("at", [2, 4])
def test_a_tensor_whose_graph_is_cut_is_kept(at: int, place: str) -> None:
    wanted = with_graphs(FakeRepair())
    assert with_graphs(FakeRepair(at, place)) == wanted
    source = Recording(at, Occasion.START)
    with_graphs(source)
    found = with_graphs(Newcomer(source))
    assert found[-len(wanted[at:]) :] == wanted[at:]


def test_a_tensor_through_which_gradients_flow_is_not_kept() -> None:
    repair = FakeRepair()
    with_graphs(repair, goes_on=True)
    [flaw] = repair.session._registered.coverage.flaws
    assert "the loop hands hidden on from step to step, and nobody registered that" in flaw


def test_what_was_changed_in_place_is_put_back_in_place() -> None:

    there, other = torch.ones(2), torch.full((2,), 5.0)
    assert as_they_were([weakref.ref(there)])(other, torch.zeros(2)) is there and there.tolist() == [0.0, 0.0]
    gone = weakref.ref(torch.ones(2))
    made = as_they_were([gone])(other, wanted := torch.zeros(2))
    assert made is wanted and other.tolist() == [5.0, 5.0]
    assert in_place()(other, torch.zeros(2)) is other and in_place()(torch.ones(3), wanted) is wanted
    assert in_place({0})(other, wanted) is wanted
    assert anew(other, wanted) is wanted


LARGE = MOST_OF_TENSORS // 2
"""Two tensors of so many elements are more than what is kept."""


def held_in_steps(steps: int, kind: str, size: int = 2) -> list[list[str]]:
    """Return what is reported in each step of a loop that hands tensors on."""
    layer = nn.Linear(2, 2)
    coverage, variables = Coverage(Replica({"model": layer}), {}), Variables()
    hidden: Any = torch.ones(size)
    made: Any = None
    averages = {"a": torch.zeros(size), "b": torch.zeros(size)}
    found = UserList[Any]()  # no repair looks into it
    for number in range(steps):
        variables.handed_out(number, 1)
        found.append(coverage.hands_on(variables.held()))
        if kind == "hidden":
            hidden = torch.tanh(hidden)
        if made is None:
            made = torch.ones(size)
        if kind == "averages":
            for name, value in averages.items():
                assert name
                value.mul_(0.9).add_(hidden)
        if kind == "later" and number in (2, 3):
            averages["b"] = averages["b"] + made
        for parameter in layer.parameters():
            parameter.data.clamp_(-1, 1)
        batch = {"x": hidden + made + averages["a"] + averages["b"]}
        batch["x"] = batch["x"] / 255
        batch["x"].clamp_(0, 1)
        layer(batch["x"][:2]).sum().backward()
    return found


@pytest.mark.parametrize(
    ("kind", "at", "name"),
    [("nothing", 9, ""), ("hidden", 1, "hidden"), ("averages", 1, "averages"), ("later", 3, "b")],
)
def test_tensors_that_are_handed_on_are_named_once_they_move(kind: str, at: int, name: str) -> None:
    assert not any(held_in_steps(5, kind)), "small ones are kept"
    found = held_in_steps(5, kind, LARGE)
    assert [bool(one) for one in found] == [step == at for step in range(5)]
    assert all(f"{name}" in sentence and "nobody registered that" in sentence for one in found for sentence in one)
