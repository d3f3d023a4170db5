"""Tests the step as a transaction, in one process: whichever step is given up and done again, the weights are the same.

`FakeRepair` plays the manager. It orders a repair at a chosen place of a chosen step. Several real processes are tested
in test_heal.py.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from taskd.errors import StepAbandoned, UsageError
from taskd.state.record import Occasion, Record
from taskd.worker import resilient as resilience
from taskd.worker.heal import Loop, Repair
from taskd.worker.sampler import StepSampler
from taskd.worker.session import Session

STEPS = 12


class Unseen:
    """A method into which no repair looks, though the scripts of these tests call it."""

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __get__(self, owner: Any, kind: type) -> Callable[..., None]:
        return functools.partial(self._function, owner)


class FakeRepair(Repair):
    """Gives up step `at` when the body calls `here(place)`; the repair agrees on what this rank holds."""

    heals = True
    __module__ = Repair.__module__  # it is no part of the script, and no step puts it back

    def __init_subclass__(cls) -> None:
        cls.__module__ = Repair.__module__

    def __init__(self, at: int = -1, place: str = "") -> None:
        self.at, self.place = at, place
        self.on = False
        self.begun = 0
        self.repairs: list[int] = []
        self.session: Session | None = None

    def ordered(self) -> bool:
        return self.on

    def operations(self) -> int:
        return self.begun

    @Unseen
    def here(self, step: int, place: str) -> None:
        """Play a collective of the training thread. A step that is given up ends here."""
        self.begun += 1
        if (step, place) == (self.at, self.place):
            self.on, self.at = True, -1
        if self.on and place != "quiet":
            raise StepAbandoned("given up")

    @Unseen
    def quietly(self, step: int, place: str) -> None:
        """The order comes here, but the script makes no call at which the step could end."""
        if (step, place) == (self.at, self.place):
            self.on, self.at = True, -1

    def run(self, loop: Loop) -> None:
        held = loop.held()
        assert held >= 0, "a rank that is alone cannot be torn"
        self.repairs.append(held)
        self.on = False
        loop.return_to(held)


class Recording(FakeRepair):
    """Keeps what a newcomer would get after `at` updates: the record of this rank, and the state of a replica."""

    records = True

    def __init__(self, at: int, occasion: Occasion) -> None:
        super().__init__()
        self.until, self.occasion = at, occasion
        self.found: bytes = b""
        self.replica: tuple[Any, Any] | None = None

    def record(self, occasion: Occasion, step: int, pieces: list[bytes]) -> None:
        if (occasion, step) == (self.occasion, self.until - (occasion is Occasion.FORWARD)):
            self.found = b"".join(pieces)

    def committed(self, updates: int) -> None:
        if updates == self.until:
            assert self.session is not None
            held = self.session.replica
            self.replica = copy.deepcopy(({name: t.detach() for name, t in held.tensors()}, held.small()))


class Newcomer(FakeRepair):
    """A newcomer that starts from what a Recording has kept."""

    newcomer = True

    def __init__(self, source: Recording) -> None:
        super().__init__()
        self.source = source
        self.alone = False

    def ordered(self) -> bool:
        return self.alone

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        self.alone = True
        yield
        self.alone = False

    def run(self, loop: Loop) -> None:
        assert self.source.replica is not None
        tensors, small = copy.deepcopy(self.source.replica)
        for name, tensor in loop.replica.tensors():
            tensor.detach().copy_(tensors[name])
        loop.replica.load_small(small)
        loop.take_over(self.source.until, self.source.occasion, self.source.found, [])
        self.newcomer = False


class Noise(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples that depend on their index and on the process' generators, as augmented data does."""

    def __len__(self) -> int:
        return 4 * STEPS

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((8,), float(index)) / 10 + torch.rand(8) * random.random(), torch.tensor([index % 3])


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def train(
    repair: FakeRepair, *, two: bool = False, zero_at_end: bool = False, spoil: bool = False
) -> dict[str, torch.Tensor]:
    """Run a small training that has everything that could go wrong. Returns the final state."""
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    data = Noise()
    loader = torch.utils.data.DataLoader(data, batch_sampler=StepSampler(data, 4, 0, 1, seed=3))
    model, second = Net(), Net()
    optimizers = [
        torch.optim.AdamW(model.parameters(), lr=0.01),
        torch.optim.SGD(second.parameters(), lr=0.1, momentum=0.9),
    ]
    if not two:
        optimizers = optimizers[:1]
    scheduler = torch.optim.lr_scheduler.StepLR(optimizers[0], step_size=3, gamma=0.7)
    counter = {"seen": 0}
    session = repair.session = Session(repair)
    session.register(model=[model, second], optimizer=optimizers, scheduler=scheduler, local={"counter": counter})
    for step in session.steps(loader, epochs=2):
        with step as (x, y):
            at = step.number
            counter["seen"] += len(x)
            if not zero_at_end:
                for optimizer in optimizers:
                    optimizer.zero_grad()
            repair.here(at, "before forward")
            for net, optimizer in zip((model, second), optimizers, strict=False):
                loss = functional.cross_entropy(net(x), y.flatten())
                repair.here(at, "after forward")
                loss.backward()
                repair.quietly(at, "in backward")
                if spoil:
                    x.mul_(0.5)
                optimizer.step()
                repair.here(at, f"after {type(optimizer).__name__}")
            scheduler.step()
            repair.here(at, "after scheduler")
            if zero_at_end:
                for optimizer in optimizers:
                    optimizer.zero_grad(set_to_none=at % 2 == 0)
    final = {f"{i}.{k}": v for i, net in enumerate((model, second)) for k, v in net.state_dict().items()}
    final |= {"seen": torch.tensor(counter["seen"]), "lr": torch.tensor(scheduler.get_last_lr())}
    return final | {"next": torch.rand(1)}


PLACES = ["before forward", "after forward", "in backward", "after AdamW", "after scheduler"]
CASES = [(place, two) for place in PLACES for two in (False, True)] + [("after SGD", True)]


@pytest.mark.one_in(5)
@pytest.mark.parametrize(("place", "two"), CASES)
@pytest.mark.parametrize("zero_at_end", [False, True])
@pytest.mark.parametrize("spoil", [False, True])
def test_a_step_given_up_leaves_no_trace(place: str, two: bool, zero_at_end: bool, spoil: bool) -> None:
    wanted = train(FakeRepair(), two=two, zero_at_end=zero_at_end, spoil=spoil)
    for at in (5, 12, 23):
        repair = FakeRepair(at, place)
        found = train(repair, two=two, zero_at_end=zero_at_end, spoil=spoil)
        assert repair.repairs, f"no repair was ordered {place} of step {at}"
        different = [name for name in wanted if not torch.equal(wanted[name], found[name])]
        assert not different, f"given up {place} of step {at}, these differ: {different}"


@pytest.mark.one_in(5)
@pytest.mark.parametrize("at", [1, 5, 12, 17])
@pytest.mark.parametrize("occasion", list(Occasion))
@pytest.mark.parametrize("two", [False, True])
def test_a_newcomer_goes_on_from_the_record(at: int, occasion: Occasion, two: bool) -> None:
    """The last entry of the record is the START of the step, or the FORWARD of the step before."""
    source = Recording(at, occasion)
    wanted = train(source, two=two)
    assert source.found
    found = train(Newcomer(source), two=two)
    different = [name for name in wanted if not torch.equal(wanted[name], found[name])]
    assert not different


def test_every_step_comes_once() -> None:
    repair = FakeRepair(7, "after forward")
    session = Session(repair)
    model = Net()
    session.register(model=model)
    seen = []
    for step in session.steps([torch.ones(2, 8)] * 10, epochs=2):
        with step as x:
            model(x)
            repair.here(step.number, "after forward")
            seen.append((step.number, step.again))
    assert [number for number, _ in seen] == list(range(20))
    assert [number for number, again in seen if again] == [7]


def test_the_users_own_error_is_not_swallowed() -> None:
    session = Session(FakeRepair())
    session.register(model=Net())
    with pytest.raises(ZeroDivisionError):
        for step in session.steps([1, 2]):
            with step:
                print(1 / 0)


def test_misuse_is_refused_with_a_sentence() -> None:
    session = Session(FakeRepair())
    with pytest.raises(UsageError, match="register"):
        next(session.steps([1]))
    session.register(model=Net())
    with pytest.raises(UsageError, match="inside `with step:`"):
        for _step in session.steps([1, 2]):
            pass
    with pytest.raises(UsageError, match="registered already"):
        session.register(model=Net())
    with pytest.raises(UsageError, match="not a torch"):
        session.register(optimizer=3)
    with pytest.raises(UsageError, match="state_dict"):
        session.register(ema=object())
    with pytest.raises(UsageError, match="is an iterator"):
        next(session.steps(iter([1])))


def test_what_is_registered_by_names_of_its_own_is_what_it_is() -> None:
    one, other, average, none = Net(), Net(), Net(), Net()
    first, second = (torch.optim.SGD(net.parameters(), lr=0.1) for net in (one, other))
    warm_up, scaler = torch.optim.lr_scheduler.ConstantLR(first), torch.amp.GradScaler("cpu")
    session = Session(FakeRepair())
    session.register(one=one, first=first, average=average, warm_up=warm_up, scales=scaler)
    session.register(other=other, shared=one.layers)
    session.register(second=second)
    session.register(one=one)  # once more
    replica = session.replica
    assert replica.models == {"one": one, "other": other} and replica.optimizers == {"first": first, "second": second}
    assert replica.others.keys() == {"average", "warm_up", "scales", "shared"}
    assert session._registered.calls.followed == {"warm_up", "scales"}
    with pytest.raises(UsageError, match="other is registered already"):
        session.register(other=none)
    session.register(local={"other": none})  # what only this rank has may be called like something of all


def test_a_decorated_train_step_is_the_same_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    def losses(repair: FakeRepair) -> list[float]:
        torch.manual_seed(5)
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        repair.session = Session(repair)
        monkeypatch.setattr(resilience, "session", lambda: repair.session)
        repair.session.register(model=model, optimizer=optimizer)
        number = -1

        @resilience.resilient
        def train_step(x: torch.Tensor) -> float:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            repair.here(number, "after forward")
            loss.backward()
            optimizer.step()
            return float(loss.detach())

        found = []
        for number in range(6):
            found.append(train_step(torch.full((4, 8), number + 1.0)))
        return found

    disturbed = FakeRepair(3, "after forward")
    assert losses(FakeRepair()) == losses(disturbed)
    assert disturbed.repairs == [3]


def test_decorated_functions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(FakeRepair())
    monkeypatch.setattr(resilience, "session", lambda: session)
    session.register(model=Net())
    seen: list[str] = []
    one, two = resilience.resilient(seen.append), resilience.resilient(lambda word: seen.append(f"{word} too"))
    for _ in range(2):
        one("one")
        two("two")
    assert seen == ["one", "two too"] * 2 and session.updates == 4
    other = Session(FakeRepair())
    monkeypatch.setattr(resilience, "session", lambda: other)
    other.register(model=Net())
    for step in other.steps([1]):
        with step:
            pass
    with pytest.raises(UsageError, match="one way"):
        one("never")


def test_a_record_reaches_back_one_step() -> None:
    """A rank dies in step 6 with update 5. Other ranks may lack it and do step 5 again, so the newcomer must, too."""
    record = Record.create()
    for step in (4, 5, 6):
        record.write(Occasion.START, step, [b"start %d" % step])
        record.write(Occasion.FORWARD, step, [b"forward %d" % step])
    assert record.find(4) is None
    assert record.find(5) == (Occasion.START, b"start 5")
    assert record.find(6) == (Occasion.START, b"start 6")
    assert record.find(7) == (Occasion.FORWARD, b"forward 6")
    assert record.held() == "start of step 6, forward of step 6, start of step 5"
    record.close()


FORKER = """
import mmap, os
from taskd.backup.slots import FILE_BYTES
from taskd.state.record import Occasion, Record

record = Record.create()
record.write(Occasion.START, 1, [b"kept"])
pid = os.fork()
if not pid:
    # One of these comes to the addresses that the record had.
    own = [mmap.mmap(-1, FILE_BYTES, mmap.MAP_PRIVATE) for _ in range(2)]
    try:
        record.write(Occasion.START, 1, [b"spoilt"])
    except ValueError:
        record.close()
        for place in own:
            place[:4] = b"mine"
        os._exit(0)
    os._exit(1)
assert os.waitpid(pid, 0)[1] == 0
assert record.find(1) == (Occasion.START, b"kept")
"""


def test_a_forked_child_has_no_record_and_loses_no_memory_by_it() -> None:
    done = subprocess.run([sys.executable, "-c", FORKER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
