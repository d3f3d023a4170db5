"""Tests a step that is left between its calls: the calls are finished, undone or known as torn, never guessed wrong.

It runs in one process, with a fake manager as in test_session.py. The step is left at a collective of the user. This
collective is between the optimizer and the calls that follow it, or inside a scaler's step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, IterableDataset

from taskd._c10d import Mode, control
from taskd.errors import StepAbandoned, UsageError
from taskd.state import tree
from taskd.state.coverage import Coverage
from taskd.state.living import living
from taskd.state.replica import Replica
from taskd.state.strange import Doubts
from taskd.worker.calls import Calls, Outcome
from taskd.worker.feed import AnotherBatch, Feed, LoaderEnded
from taskd.worker.following import follow_call, follow_optimizer
from taskd.worker.session import Session
from taskd.worker.step_state import StepEvent, StepMachine
from tests.train.test_session import FakeRepair

STEPS = 12
# Some of these steps are left early, or have their scheduler in an unusual place, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")


class Followed:
    """Follows the calls of a training that has no session."""

    def __init__(self, replica: Replica, repair: FakeRepair) -> None:
        self.step = StepMachine()
        self.calls = Calls(replica, repair.ordered, repair.operations, self.step, Doubts(lambda _: None))

    def begin(self, rehearsal: bool = False) -> bool:
        self.step.happens(StepEvent.ENTERED)
        return self.calls.begin(rehearsal)

    def commit(self) -> None:
        self.step.happens(StepEvent.COMMITTED)
        self.calls.commit()

    def give_up(self) -> Outcome:
        self.step.happens(StepEvent.ABANDONED)
        return self.calls.give_up(False)


class Trainer(FakeRepair):
    """A small training in which `what` follows the optimizer. The step may be left before `what`."""

    def __init__(self, what: str, at: int = -1, place: str = "") -> None:
        super().__init__(at, place)
        self.what = what

    def run(self, loop: Any) -> None:
        if loop.held() < 0:
            raise RuntimeError("torn")
        super().run(loop)

    def train(self) -> list[Any]:
        return train_with(self)


def train_with(repair: Trainer) -> list[Any]:
    """Run the training. It is no method, so that attributes of the repair are no variables of the script."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler: Any = lr_scheduler.StepLR(optimizer, 1, 0.5)
    if repair.what == "plateau":
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3, enabled=repair.what.startswith("scale"))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    local: dict[str, Any] = {"seen": 0}
    named: dict[str, Any] = {"local": {"own": local}} if repair.what == "local" else {}
    if repair.what == "average":
        named["average"] = average
    if scaler.is_enabled():
        named["scaler"] = scaler
    session = repair.session = Session(repair)
    session.register(model=model, optimizer=optimizer, scheduler=scheduler, **named)
    for step in session.steps([torch.ones(4, 8) * at for at in range(STEPS)]):
        with step as x:
            at = step.number
            repair.here(at, "start")
            if repair.what == "early":
                scheduler.step()
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            scaler.scale(loss).backward()
            repair.quietly(at, "in backward")
            if repair.what == "scale clip":
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if repair.what != "scale":
                repair.here(at, "norm")
            if repair.what != "early" or at % 2:
                scaler.step(optimizer)
            scaler.update()
            repair.here(at, "metric")
            if "average" in named:
                average.update_parameters(model)
            if repair.what == "local":  # if not registered, its value after that collective is unknown
                local["seen"] += at
            if repair.what == "plateau":
                scheduler.step(loss.item())
            elif repair.what != "early" and (repair.what != "rare" or at % 4 == 3):
                scheduler.step()
    weights = [value.clone() for value in model.state_dict().values()]
    if repair.what == "average":
        weights += [value.clone() for value in average.state_dict().values()]
    return [
        *weights,
        torch.tensor(
            [local["seen"] if repair.what == "local" else 0, optimizer.param_groups[0]["lr"], scaler.get_scale()]
        ),
    ]


WHATS = ["plain", "rare", "plateau", "average", "local", "early", "scale", "scale clip"]


PLACES = ["start", "in backward", "norm", "metric"]


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("what", "place"), [(what, place) for what in WHATS for place in PLACES if (what, place) != ("scale", "norm")]
)
def test_whatever_is_missing_of_a_step_comes_out_the_same(what: str, place: str) -> None:
    wanted = Trainer(what).train()
    for at in (2, 3, 7, 8, STEPS - 1):
        trainer = Trainer(what, at, place)
        found = trainer.train()
        assert trainer.repairs, f"no repair was ordered at {place} of step {at}"
        assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True)), f"at {place} of step {at}"


@pytest.mark.parametrize("what", WHATS)
def test_the_first_step_is_undone(what: str) -> None:
    """It is not known yet which calls are missing in it."""
    wanted = Trainer(what).train()
    found = Trainer(what, 1 if what == "early" else 0, "metric").train()
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


@pytest.mark.parametrize("place", ["in backward", "closure"])
def test_an_optimizer_that_was_calling_for_gradients_is_undone(place: str) -> None:
    """In a step that is given up, gradients are wrong or never come. By then LBFGS has moved its parameters."""

    def train(repair: Trainer) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Linear(8, 8)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
        session = Session(repair)
        session.register(model=model, optimizer=optimizer)
        for step in session.steps([torch.randn(4, 8) for _ in range(STEPS)]):
            with step as x:
                calls = 0

                def closure(x: torch.Tensor = x, number: int = step.number) -> torch.Tensor:
                    nonlocal calls
                    calls += 1
                    optimizer.zero_grad()
                    loss = (model(x) - x).square().mean()
                    loss.backward()
                    if calls == 3:
                        repair.quietly(number, "in backward")
                        if place == "closure":
                            repair.here(number, "closure")
                    if repair.on:
                        for parameter in model.parameters():
                            assert parameter.grad is not None
                            parameter.grad.fill_(7.0)
                    return loss

                optimizer.step(closure)
        return [value.clone() for value in model.state_dict().values()]

    wanted = train(Trainer(""))
    for at in (0, 5):
        trainer = Trainer("", at, place)
        found = train(trainer)
        assert trainer.repairs == [at]
        assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


class Talker(torch.optim.SGD):
    """An optimizer that communicates between its parameters, like those that share their work among ranks."""

    repair: FakeRepair
    number = -1

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])
                self.repair.here(self.number, "in the optimizer")


@pytest.mark.parametrize("at", [0, 5])
def test_an_optimizer_that_communicates_is_undone_in_the_middle(at: int) -> None:
    def train(repair: Trainer) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Linear(8, 8)
        optimizer = Talker(model.parameters(), lr=0.1)
        optimizer.repair = repair
        session = Session(repair)
        session.register(model=model, optimizer=optimizer)
        for step in session.steps([torch.ones(4, 8)] * STEPS):
            with step as x:
                optimizer.number = step.number
                optimizer.zero_grad()
                (model(x) - x).square().mean().backward()
                optimizer.step()
        return [value.clone() for value in model.state_dict().values()]

    wanted = train(Trainer(""))
    trainer = Trainer("", at, "in the optimizer")
    found = train(trainer)
    assert trainer.repairs == [at]
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


def test_an_optimizer_whose_step_is_compiled_is_followed() -> None:
    class Asking(FakeRepair):
        def ordered(self) -> bool:
            return control.mode != Mode.NORMAL or self.on  # control.mode is a new object each time

    repair = Asking(3, "in backward")
    session = repair.session = Session(repair)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session.register(model=model, optimizer=optimizer)
    compiled = torch.compile(optimizer.step, backend="eager")
    for step in session.steps([torch.ones(2)] * 6):
        with step as x:
            model(x).sum().backward()
            repair.quietly(step.number, "in backward")
            compiled()
    assert repair.repairs == [3] and session.updates == 6


def test_nothing_is_kept_aside_where_a_step_can_be_finished() -> None:
    trainer = Trainer("plain")
    trainer.train()
    assert trainer.session is not None and not trainer.session._registered.calls.reversal.copies.keeps_memory


@pytest.mark.parametrize("inherits", [False, True])
def test_a_newcomer_finishes_what_the_dead_rank_would_have_finished(inherits: bool) -> None:
    """It knows from the record which calls follow an optimizer. Without that, it can only undo its first step."""

    def life() -> tuple[Followed, torch.optim.Optimizer, Any]:
        replica = Replica()
        weight = nn.Parameter(torch.ones(3))
        weight.grad = torch.ones(3)
        optimizer = torch.optim.SGD([weight], lr=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        replica.optimizers["optimizer"], replica.others["scheduler"] = optimizer, scheduler
        followed = Followed(replica, FakeRepair())
        follow_optimizer(followed.calls, "optimizer", optimizer)
        follow_call(followed.calls, "scheduler", scheduler, "step")
        return followed, optimizer, scheduler

    before, optimizer, scheduler = life()
    before.begin()
    optimizer.step()
    scheduler.step()
    before.commit()
    record = b"".join(tree.pack(before.calls.pack_habits()))
    newcomer, optimizer, scheduler = life()
    if inherits:
        newcomer.calls.inherit(tree.unpack(record))
    newcomer.begin()
    optimizer.step()
    assert newcomer.give_up() is (Outcome.WHOLE if inherits else Outcome.NOTHING)
    assert scheduler.last_epoch == int(inherits)
    weight = optimizer.param_groups[0]["params"][0]
    assert torch.equal(weight, torch.full((3,), 0.5 if inherits else 1.0))


def test_an_optimizer_with_numbers_of_its_own_is_undone() -> None:
    """SparseAdam counts its steps in a plain number, not in a tensor."""

    def train(repair: Trainer) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(4, 8, sparse=True), nn.Linear(8, 8))
        optimizers: list[torch.optim.Optimizer] = [
            torch.optim.SparseAdam(model[0].parameters(), lr=0.1),
            torch.optim.SGD(model[1].parameters(), lr=0.1),
        ]
        session = Session(repair)
        session.register(model=model, optimizer=optimizers)
        for step in session.steps([torch.tensor([at % 4, 1]) for at in range(STEPS)]):
            with step as x:
                for optimizer in optimizers:
                    optimizer.zero_grad()
                model(x).square().sum().backward()
                for place, optimizer in enumerate(optimizers):
                    optimizer.step()
                    repair.here(step.number, f"after {place}")
        return [value.clone() for value in model.state_dict().values()]

    wanted = train(Trainer(""))
    found = train(Trainer("", 7, "after 0"))
    assert all(torch.equal(one, two) for one, two in zip(wanted, found, strict=True))


def test_what_is_communicated_between_two_steps_is_noticed_once() -> None:
    repair = FakeRepair()
    followed = Followed(Replica(), repair)
    told = []
    for step in range(4):
        followed.calls.loop_begins() if step == 0 else None
        told.append(followed.begin())
        repair.here(step, "in a step")
        followed.commit()
        if step:
            repair.here(step, "between")
    assert told == [False, False, True, False]
    followed = Followed(Replica(), repair)
    for _loop in range(2):
        repair.here(0, "before a loop")
        followed.calls.loop_begins()
        assert not followed.begin()
        followed.commit()


def test_a_rehearsal_goes_through_the_closure_and_no_further() -> None:
    repair = FakeRepair()
    repair.on = True
    followed = Followed(Replica(), repair)
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.LBFGS([weight])
    follow_optimizer(followed.calls, "optimizer", optimizer)
    calls = []
    for rehearsal in (True, False):
        followed.begin(rehearsal)
        with pytest.raises(StepAbandoned):
            optimizer.step(lambda: calls.append(torch.is_grad_enabled()))
        followed.step.happens(StepEvent.REHEARSED)
    assert calls == [True] and torch.equal(weight, torch.ones(2))


def test_a_sample_of_a_stream_is_its_first_batch() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(6))

        def __len__(self) -> int:
            return 6

    assert Feed(DataLoader(Stream(), batch_size=2), 1).sample().tolist() == [0, 1]


def test_a_loader_without_a_length_ends_where_it_ends() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    feed = Feed(DataLoader(Stream(), batch_size=None), 1)
    assert [feed.batch(0), feed.batch(1), feed.batch(2), feed.extent.length] == [0, 1, 2, None]
    with pytest.raises(LoaderEnded):
        feed.batch(3)
    assert feed.extent.length == 3 and feed.batch(2) == 2
    later = Feed(DataLoader(Stream(), batch_size=None), 1)
    assert later.batch(2) == 2, "a newcomer skips what is done"
    with pytest.raises(AnotherBatch, match="no batch for step 5: it ends after 3"):
        Feed(DataLoader(Stream(), batch_size=None), 1).batch(5)
    with pytest.raises(LoaderEnded):
        Feed(DataLoader(Stream(), batch_size=None), 1).batch(3)


def test_what_needs_a_length_says_so() -> None:
    class Stream:
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(UsageError, match="a Stream has no length"):
        Feed(Stream(), 2)
    with pytest.raises(UsageError, match="a list_iterator is an iterator: it cannot be opened again"):
        Feed(iter([1]), 1)


# ---- what is not registered ----------------------------------------------------------------------------------------


def test_living_objects_are_found_by_their_type_and_never_asked() -> None:
    class Kind:
        pass

    class Below(Kind):
        pass

    class Lazy:
        @property
        def __class__(self) -> type:  # type: ignore[override]
            raise AssertionError("a walk over all objects has woken this one up")

    one, other, lazy = Kind(), Below(), Lazy()
    assert {id(item) for item in living(Kind)} == {id(one), id(other)}
    assert [id(item) for item in living(Below, Lazy)] == [id(other), id(lazy)]


def test_schedulers_and_scalers_that_move_and_are_not_registered_are_named() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inner = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    known = lr_scheduler.SequentialLR(optimizer, inner, milestones=[2])
    other, still = lr_scheduler.StepLR(optimizer, 1), lr_scheduler.StepLR(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    coverage = Coverage(Replica({"model": model}, {"optimizer": optimizer}, {"scheduler": known}), {})
    assert coverage.look() == []
    known.step()
    assert coverage.check() == [] and still.last_epoch == 0
    scaler.scale(torch.ones(1))
    other.step()
    coverage.rebase()
    assert coverage.check() == []
    other.step()
    scaler.load_state_dict({**scaler.state_dict(), "scale": 3.0})
    first, second = sorted(coverage.check())
    assert "the step moves a GradScaler that is not registered" in first and "starts over" in first
    assert "the step moves a StepLR that is not registered" in second


def test_a_module_that_is_changed_between_two_loops_is_named() -> None:
    model, other, frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)
    average = torch.optim.swa_utils.AveragedModel(model)
    replica = Replica({"model": model}, {}, {})
    coverage = Coverage(replica, {})
    assert coverage.look() == [] and coverage.check() == []
    with torch.no_grad():
        other.weight.add_(1)
    replica.models["other"] = other  # registered before the next loop, so it is put back from there on
    assert coverage.look() == [] and coverage.check() == []
    average.update_parameters(model)
    [sentence] = coverage.look()
    assert sentence.startswith("the loop, or what stands between two of them, changes 3 tensors of a module"), sentence
    assert "(AveragedModel)" in sentence and "starts over" in sentence and frozen.weight.numel()
