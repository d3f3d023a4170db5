"""Tensors that steps hand on, and that something else has, too: what is given is right, or it is refused."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from taskd.errors import Misfit
from taskd.state.record import Occasion
from taskd.worker.session import Session
from tests.train.test_session import FakeRepair, Newcomer, Recording

DATA = [torch.full((2, 4), 0.1 * (at + 1)) for at in range(5)]
Trained = Callable[[FakeRepair], list[Any]]


class Fake(FakeRepair):
    """Writes records, and knows what the session would say of its death."""

    records = True
    said = ""

    def run(self, loop: Any) -> None:
        self.said = loop.flaw()
        super().run(loop)


class New(Newcomer):
    """Compares what its predecessor has noted."""

    records = True


class Cell(nn.Module):
    """Keeps its hidden state in a dict that others have, too."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.state = nn.Linear(4, 4), state

    def forward(self, x: Any) -> Any:
        y = torch.tanh(self.layer(x) + self.state["h"])
        self.state["h"] = y.detach()
        return y


class Centred(nn.Module):
    """Has a tensor of the script."""

    def __init__(self, centre: torch.Tensor) -> None:
        super().__init__()
        self.layer, self.centre = nn.Linear(4, 4), centre

    def forward(self, x: Any) -> Any:
        return self.layer(x) - self.centre


class Chosen(nn.Module):
    """Its forward is a function that each instance has."""

    def __init__(self, f: Any) -> None:
        super().__init__()
        self.layer, self.hidden, self.f = nn.Linear(4, 4), torch.zeros(2, 4), f

    def forward(self, x: Any) -> Any:
        return self.f(self, x)


def plain(module: Chosen, x: Any) -> Any:
    return module.layer(x)


def recurrent(module: Chosen, x: Any) -> Any:
    y = torch.tanh(module.layer(x) + module.hidden)
    module.hidden = y.detach()
    return y


def begun(repair: FakeRepair, model: nn.Module) -> tuple[torch.optim.Optimizer, Session]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = repair.session = Session(repair)
    session.register(model=model, optimizer=optimizer)
    return optimizer, session


def ended(found: UserDict[int, Any], model: nn.Module) -> list[Any]:
    return [*(found[number] for number in sorted(found)), [one.tolist() for one in model.parameters()]]


def updated(repair: FakeRepair, step: Any, optimizer: torch.optim.Optimizer, y: Any) -> None:
    optimizer.zero_grad()
    repair.here(step.number, "start")
    y.square().mean().backward()
    repair.here(step.number, "reduced")
    optimizer.step()
    repair.here(step.number, "metrics")


def two_names(repair: FakeRepair) -> list[Any]:
    torch.manual_seed(1)
    model, found = nn.Linear(4, 4), UserDict[int, Any]()
    optimizer, session = begun(repair, model)
    zero = torch.zeros(4)
    before, now = zero, zero
    for step in session.steps(DATA):
        with step as x:
            found[step.number] = [before.tolist(), now.tolist()]
            y = model(x) + 0.5 * now - 0.25 * before
            updated(repair, step, optimizer, y)
            before, now = now, y.detach().mean(0)
    return ended(found, model)


def of_a_module(repair: FakeRepair) -> list[Any]:
    torch.manual_seed(1)
    stats, found = {"count": torch.zeros(1), "mean": torch.zeros(4)}, UserDict[int, Any]()
    model = Centred(stats["mean"])
    optimizer, session = begun(repair, model)
    for step in session.steps(DATA):
        with step as x:
            found[step.number] = [model.centre.tolist(), stats["mean"].tolist(), stats["count"].tolist()]
            y = model(x)
            updated(repair, step, optimizer, y)
            for key in ("count",):
                stats[key] = stats[key] + 1
            for key in ("mean",):
                stats[key].mul_(0.9).add_(y.detach().mean(0) / stats["count"])
    return ended(found, model)


def by_id(repair: FakeRepair) -> list[Any]:
    torch.manual_seed(1)
    model, usual, found = nn.Linear(4, 4), dict[int, torch.Tensor](), UserDict[int, Any]()
    optimizer, session = begun(repair, model)
    alive.append(model)  # so that no newcomer's parameter has the same id
    for step in session.steps(DATA):
        with step as x:
            found[step.number] = [float(usual[id(one)].sum()) if id(one) in usual else 0 for one in model.parameters()]
            more = sum((one * usual.get(id(one), torch.zeros(()))).sum() for one in model.parameters())
            updated(repair, step, optimizer, model(x) + 0.1 * more)
            for one in model.parameters():
                usual[id(one)] = 0.8 * usual.get(id(one), torch.zeros(())) + 0.2 * one.detach()
    return ended(found, model)


alive: list[nn.Module] = []


def changed_twice(repair: FakeRepair) -> list[Any]:
    torch.manual_seed(1)
    model, found = nn.Linear(4, 4), UserDict[int, Any]()
    optimizer, session = begun(repair, model)
    hidden = torch.zeros(2, 4)
    for step in session.steps(DATA):
        with step as x:
            found[step.number] = hidden.tolist()
            y = torch.tanh(model(x) + hidden)
            hidden = y.detach()
            updated(repair, step, optimizer, y)
            hidden = hidden * (hidden.mean(1, keepdim=True) < 0.1)
    return ended(found, model)


def two_of_a_class(repair: FakeRepair) -> list[Any]:
    torch.manual_seed(1)
    model, found = nn.Sequential(Chosen(plain), Chosen(recurrent)), UserDict[int, Any]()
    optimizer, session = begun(repair, model)
    for step in session.steps(DATA):
        with step as x:
            found[step.number] = model[1].hidden.tolist()
            updated(repair, step, optimizer, model(x))
    return ended(found, model)


def shared_dict(repair: FakeRepair) -> list[Any]:
    torch.manual_seed(1)
    state, found = {"h": torch.zeros(2, 4)}, UserDict[int, Any]()
    model = nn.Sequential(Cell(state), nn.Linear(4, 4))
    optimizer, session = begun(repair, model)
    for _ in session.epochs(2):
        state["h"] = torch.zeros(2, 4)
        for step in session.steps(DATA):
            with step as x:
                found[step.number] = model[0].state["h"].tolist()
                updated(repair, step, optimizer, model(x))
    return ended(found, model)


def cyclic(repair: FakeRepair) -> list[Any]:
    torch.manual_seed(1)
    model, found, root = nn.Linear(4, 4), UserDict[int, Any](), dict[str, Any](hidden=torch.zeros(2, 4))
    root["parent"] = root
    root["text"] = ["\udc80", torch.zeros(1)]
    optimizer, session = begun(repair, model)
    for step in session.steps(DATA):
        with step as x:
            found[step.number] = root["hidden"].tolist()
            y = torch.tanh(model(x) + root["hidden"] + root["text"][1])
            root["hidden"], root["text"][1] = y.detach(), root["text"][1] + 0.1
            updated(repair, step, optimizer, y)
    return ended(found, model)


KINDS = [two_names, of_a_module, by_id, changed_twice, two_of_a_class, cyclic]


def right(trained: Trained, repair: Fake, wanted: list[Any]) -> bool:
    """Whether it ends as wanted, is refused, or the job has said that it cannot be healed."""
    try:
        found = trained(repair)
    except Misfit:
        return True
    return bool(repair.said or repair.session._registered.coverage.flaws) or found == wanted[-len(found) :]


@pytest.mark.parametrize("place", ["start", "reduced", "metrics"])
@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("trained", [*KINDS, shared_dict])
def test_a_step_that_is_done_again_is_right(trained: Trained, at: int, place: str) -> None:
    repair = Fake(at, place)
    assert right(trained, repair, trained(Fake()))
    assert repair.repairs


@pytest.mark.parametrize("at", [1, 3])
@pytest.mark.parametrize("trained", KINDS)
def test_a_newcomer_is_right(trained: Trained, at: int) -> None:
    source = Recording(at, Occasion.START)
    wanted = trained(source)
    try:
        found = trained(New(source))
    except Misfit:
        return
    assert source.session._registered.coverage.flaws or found[-len(wanted[at:]) :] == wanted[at:]
