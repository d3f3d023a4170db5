"""Tests several loops over one session: loops that the body leaves, code between loops, and newcomers.

They run in one process, with a fake manager as in test_session.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from taskd.errors import UsageError
from taskd.state.record import Occasion
from taskd.worker.feed import Feed
from taskd.worker.heal import Loop
from taskd.worker.session import Session
from taskd.worker.together import Together
from tests.train.test_session import FakeRepair, Newcomer, Recording

PER_LOOP, LOOPS = 4, 3


class Later(Newcomer):
    """A newcomer whose life before was in loop `loop`. The other ranks tell it where the earlier loops have ended."""

    def __init__(self, source: Recording, loop: int) -> None:
        super().__init__(source)
        self.loop_before = loop

    def run(self, loop: Loop) -> None:
        loop.ends[:] = [PER_LOOP * (at + 1) for at in range(self.loop_before - 1)]
        super().run(loop)


def train(repair: FakeRepair) -> list[Any]:
    """Run a training with one loop per epoch and a scheduler step between loops. Returns the final state."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3))
    average = AveragedModel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    session = repair.session = Session(repair)
    session.register(model={"net": model, "average": average}, optimizer=optimizer, scheduler=scheduler)
    for epoch in range(LOOPS):
        for step in session.steps([torch.full((4, 8), float(epoch * PER_LOOP + at)) for at in range(PER_LOOP)]):
            torch.rand(1)  # before the step, and done again with it
            with step as x:
                optimizer.zero_grad()
                loss = (model(x) - x).square().mean()
                repair.here(step.number, "after forward")
                loss.backward()
                repair.quietly(step.number, "in backward")
                optimizer.step()
                average.update_parameters(model)
        scheduler.step()
    return [*model.state_dict().values(), *average.state_dict().values(), torch.tensor(scheduler.get_last_lr())]


def same(one: list[Any], two: list[Any]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("place", ["after forward", "in backward"])
def test_what_the_body_draws_before_its_step_is_drawn_once(place: str) -> None:
    wanted = train(FakeRepair())
    for at in (1, PER_LOOP, 9):
        repair = FakeRepair(at, place)
        assert same(wanted, train(repair)), f"given up {place} of step {at}"
        assert repair.repairs


@pytest.mark.parametrize(("updates", "loop"), [(2, 1), (PER_LOOP + 1, 2), (2 * PER_LOOP + 3, 3)])
@pytest.mark.parametrize("occasion", list(Occasion))
def test_a_newcomer_takes_the_state_in_the_loop_where_it_goes_on(updates: int, loop: int, occasion: Occasion) -> None:
    """The code between earlier loops is only rehearsed: a schedule that was taken over must not move again."""
    source = Recording(updates, occasion)
    wanted = train(source)
    assert source.found
    assert same(wanted, train(Later(source, loop)))


def test_a_loop_that_its_body_leaves_is_over() -> None:
    session = Session(FakeRepair())
    session.register(model=nn.Linear(1, 1))
    seen: list[tuple[int, int]] = []
    for stop in (2, 0, 3, 9):
        for step in session.steps(range(4)):
            with step as batch:
                seen.append((step.number, batch))
            if batch == stop:
                break
    batches = [0, 1, 2, 0, 0, 1, 2, 3, 0, 1, 2, 3]
    assert seen == [*enumerate(batches)]
    assert session.ends == [3, 4, 8, 12]


@pytest.mark.parametrize("ahead", [False, True])
def test_a_newcomer_of_one_that_died_between_two_loops(ahead: bool) -> None:
    """It runs the code between the loops. That counts only if the giver of its state had not run it yet."""

    class Between(Later):
        def run(self, loop: Loop) -> None:
            super().run(loop)
            loop.ends.append(2 * PER_LOOP)
            if ahead:
                assert self.session is not None
                for group in self.session.replica.optimizers["optimizer"].param_groups:
                    group["lr"] *= 0.5
                scheduler = self.session.replica.others["scheduler"]
                scheduler.last_epoch, scheduler._last_lr = 2, [group["lr"]]
            loop.carry(2 + ahead, b"", {})

    source = Recording(2 * PER_LOOP, Occasion.FORWARD)
    wanted = train(source)
    assert same(wanted, train(Between(source, 2)))


def seen(feed: Feed, epoch: int) -> list[int]:
    """Return the samples of one epoch, in order."""
    count = feed.extent.per_epoch
    assert count is not None
    return [int(feed.batch(epoch * count + at)) for at in range(count)]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_epoch_of_a_sampler_is_the_scripts(workers: int) -> None:
    sampler = DistributedSampler(range(8), 1, 0, seed=3)  # type: ignore[arg-type]
    loader: DataLoader[int] = DataLoader(range(8), sampler=sampler, num_workers=workers)  # type: ignore[arg-type]

    def plain(epoch: int) -> list[int]:
        sampler.set_epoch(epoch)
        return [*sampler]

    orders = [plain(epoch) for epoch in range(9)]
    sampler.set_epoch(5)
    one = Feed(loader, 1)
    assert seen(one, 0) == orders[5]
    sampler.set_epoch(7)  # for later loops: a loop that is opened again keeps its own epoch
    again = Feed.batch(one, 2)
    assert int(again) == orders[5][2] and sampler.epoch == 7
    several = Feed(loader, 2)
    assert seen(several, 0) == orders[7] and seen(several, 1) == orders[8]
    several.close()
    assert sampler.epoch == 7, "what follows finds what a rank finds that never ran through this loop"


def test_an_epoch_that_is_set_where_steps_counts_them() -> None:
    sampler = DistributedSampler(range(4), 1, 0)  # type: ignore[arg-type]
    feed = Feed(DataLoader(range(4), sampler=sampler), 3)  # type: ignore[arg-type]
    seen(feed, 0), seen(feed, 1)
    sampler.set_epoch(5)
    with pytest.raises(UsageError, match="one loop of steps\\(\\) for each epoch"):
        seen(feed, 2)


class Uneven(Together):
    """Another rank has ended each loop one step later."""

    def numbers(self, mine: list[int]) -> list[list[int]]:
        return [mine, [one + 1 for one in mine]]


def test_loops_that_end_apart_are_said_once_and_end_the_proofs(caplog: pytest.LogCaptureFixture) -> None:
    repair = FakeRepair()
    repair.together, repair.speaks = Uneven(), True
    train(repair)
    assert repair.session is not None and repair.session._transaction.prover._off
    said = [one.message for one in caplog.records if "has ended after" in one.message]
    assert len(said) == 1 and f"after {PER_LOOP} steps on rank 0 " in said[0]
    assert said[0] in repair.session._registered.coverage.flaws


def test_nobody_meets_where_ranks_may_wait_in_join(monkeypatch: pytest.MonkeyPatch) -> None:
    repair = FakeRepair()
    repair.together = Uneven()
    train(repair)
    session = repair.session
    assert session is not None and session.between(lambda: 1) == 1, "behind the Join, or without one"
    monkeypatch.setattr("taskd.worker.joining.is_joined", lambda: True)
    with pytest.raises(UsageError, match="inside of torch's Join"):
        session.between(lambda: 1)
