"""When leftovers are found and followed (worker/leftovers.py), in whole trainings of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from taskd.state.record import Occasion
from taskd.worker.heal import Misfit
from taskd.worker.session import Session
from tests.train.test_session import FakeRepair, Newcomer, Recording

STEPS = 6


class Keeper:
    """Keeps something that no source shows."""

    def __init__(self) -> None:
        self.mean = torch.zeros(8)


def trained_by_data(repair: FakeRepair) -> None:
    """Train with an average that the loop's source shows being found, and that is written to where torch counts no
    writes. It stands in an object whose class is not the script's."""
    torch.manual_seed(1)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = repair.session = Session(repair)
    session.register(model=model, optimizer=optimizer)
    kept = Keeper()
    for step in session.steps([torch.full((4, 8), at + 1.0) for at in range(STEPS)]):
        with step as x:
            mean = vars(kept).get("mean")
            if step.number == 1:
                mean.add_(1.0)
            mean.data.mul_(0.8).add_(x.mean(0), alpha=0.2)
            loss = (model(x) - mean).square().mean()
            optimizer.zero_grad()
            repair.here(step.number, "forward")
            loss.backward()
            optimizer.step()


def trained(repair: FakeRepair, uses: bool = False, extra: nn.Module | None = None, saves: bool = False) -> float:
    """Train with an average of the batches. Return what it holds at the end. `uses`: each step computes with it.
    `saves`: each step saves it when it is agreed."""
    torch.manual_seed(1)
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = repair.session = Session(repair)
    session.register(model=model, optimizer=optimizer, **({} if extra is None else {"local": {"extra": extra}}))
    kept: dict[str, Any] = {"one": Keeper()}
    for step in session.steps([torch.full((4, 8), at + 1.0) for at in range(STEPS)]):
        with step as x:
            mean = vars(kept.get("one")).get("mean")
            mean.mul_(0.8).add_(x.mean(0), alpha=0.2)
            loss = (model(x) - (mean if uses else 0.0)).square().mean()
            if saves:
                step.on_commit(lambda _: None, [mean])
            if extra is not None:
                loss = loss + extra(x).detach().mean()
                with torch.no_grad():
                    extra[0].weight.mul_(0.9)  # type: ignore[operator,index]
            optimizer.zero_grad()
            repair.here(step.number, "forward")
            loss.backward()
            optimizer.step()
    return float(vars(kept.get("one")).get("mean").sum())


def test_what_no_step_computes_with_hinders_no_repair() -> None:
    repair = FakeRepair(3, "forward")
    trained(repair)
    assert repair.repairs


def test_no_step_computes_with_what_its_first_attempt_has_left() -> None:
    with pytest.raises(Misfit, match=r"computes with what an earlier step has left in Keeper\.mean"):
        trained(FakeRepair(3, "forward"), uses=True)


def test_none_is_saved_when_a_step_is_agreed() -> None:
    with pytest.raises(Misfit, match="mean"):
        trained(FakeRepair(3, "forward"), saves=True)


def test_writes_that_torch_does_not_count_are_seen() -> None:
    with pytest.raises(Misfit, match="mean"):
        trained_by_data(FakeRepair(4, "forward"))


def test_a_newcomer_at_the_end_of_its_loop_refuses_what_nobody_could_give() -> None:
    source = Recording(STEPS, Occasion.FORWARD)
    trained(source)
    with pytest.raises(Misfit, match="mean"):
        trained(Newcomer(source))


def test_registered_modules_are_no_leftovers() -> None:
    repair = FakeRepair(3, "forward")
    trained(repair, extra=nn.Sequential(nn.Linear(8, 8)))
    assert repair.repairs
