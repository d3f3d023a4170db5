"""What a rank keeps of a model that no other rank has: the memory file, and updates that are made again from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from taskd.core.types import NOTHING_KEPT, Kept
from taskd.errors import PeerError
from taskd.state import kept_shards
from taskd.state.replica import Replica
from taskd.state.shard_file import SLOT_BYTES, Leads, ShardFile
from taskd.worker.keeping import Keeping


@pytest.fixture
def file() -> Iterator[ShardFile]:
    found = ShardFile.create()
    yield found
    os.close(found.descriptor)


def trained(make: Callable[[Any], torch.optim.Optimizer], **others: Any) -> Replica:
    """Return a small model with an optimizer, after no step."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False))
    return Replica({"model": model}, {"optimizer": make(model.parameters())}, others, kept=True)


def keeper(replica: Replica, file: ShardFile, said: list[str] | None = None) -> Keeping:
    """Return what keeps this in this file. Sentences about its end go to `said`; without one, there must be none."""
    replica.attributes.look()
    return Keeping(replica, file, False, pytest.fail if said is None else said.append, lambda sentence: None)


def ended(keeping: Keeping, updates: int, moved: bool = False, talks: bool = False) -> bool:
    """A step has ended in which nobody communicates."""
    return keeping.step_ended(updates, moved, talks, lambda: 0)


def backward(replica: Replica, number: int) -> None:
    """Make the gradients of one step."""
    (model,), (optimizer,) = replica.models.values(), replica.optimizers.values()
    optimizer.zero_grad()
    model(torch.randn(4, 5, generator=torch.Generator().manual_seed(number))).square().sum().backward()


def bits(replica: Replica) -> list[bytes]:
    """Return all that an update changes, as bytes."""
    (optimizer,) = replica.optimizers.values()
    moments = [one for state in optimizer.state.values() for one in state.values() if isinstance(one, torch.Tensor)]
    return [one.detach().numpy().tobytes() for one in (*replica.models["model"].parameters(), *moments)]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda of: torch.optim.AdamW(of, lr=0.01),
    "foreach": lambda of: torch.optim.AdamW(of, lr=0.01, foreach=True),
    "fused": lambda of: torch.optim.Adam(of, lr=0.01, fused=True),
    "lr in a tensor": lambda of: torch.optim.Adam(of, lr=torch.tensor(0.01), capturable=False, foreach=False),
    "SGD": lambda of: torch.optim.SGD(of, lr=0.1, momentum=0.9, nesterov=True),
    "plain SGD": lambda of: torch.optim.SGD(of, lr=0.1),
    "Adafactor": lambda of: torch.optim.Adafactor(of),
    "NAdam": lambda of: torch.optim.NAdam(of),
    "RAdam": lambda of: torch.optim.RAdam(of),
    "Rprop": lambda of: torch.optim.Rprop(of),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_made_again_has_the_same_bits(file: ShardFile, name: str) -> None:
    steps = 6
    one, other = trained(OPTIMIZERS[name]), trained(OPTIMIZERS[name])
    keeping = keeper(one, file)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(*one.optimizers.values(), 0.7)
    one.others["scheduler"] = scheduler
    other.others["scheduler"] = torch.optim.lr_scheduler.ExponentialLR(*other.optimizers.values(), 0.7)
    for number in range(steps):
        keeping.step_begins(number)
        backward(one, number)
        keeping.comes_to_gate(number, updates=True)
        proved = number > 1 or (number == 1 and not one.optimizers["optimizer"].state)
        assert keeping.kept == Kept(max(number - 1, 0), number + proved)
        one.optimizers["optimizer"].step()
        after = bits(one)
        assert ended(keeping, number + 1) == (number == (1 if one.optimizers["optimizer"].state else 0))
        assert bits(one) == after, "trying has changed nothing"
        heir = keeper(other, file)
        assert not heir.bring(number + 1), "the update was made here, so what follows it is not known"
        assert bits(other) == after
        scheduler.step()
    keeping.step_begins(steps)
    heir = keeper(other, file)
    assert heir.bring(steps) and bits(other) == bits(one)
    assert other.others["scheduler"].state_dict() == scheduler.state_dict()
    assert heir.word(steps) == keeping.word(steps) != heir.word(steps - 1)


def test_a_step_without_an_update(file: ShardFile) -> None:
    replica = trained(OPTIMIZERS["AdamW"])
    keeping = keeper(replica, file)
    keeping.step_begins(0)
    keeping.comes_to_gate(0, updates=False)
    before = bits(replica)
    assert keeping.kept == Kept(0, 1) and not file.proved
    assert keeping.bring(1) is False and bits(replica) == before


class Clamps(torch.optim.SGD):
    """Computes gradients again while it steps, as a closure would."""

    def step(self, closure: Any = None) -> Any:
        """Make a step that the gradients alone do not make."""
        if closure is None:
            raise TypeError("step() needs a closure")
        return super().step()


@pytest.mark.parametrize(
    ("kind", "why"), [("clamp", "came out otherwise"), ("hook", "came out otherwise"), ("closure", "needs a closure")]
)
def test_an_update_that_depends_on_more_ends_the_keeping(file: ShardFile, kind: str, why: str) -> None:
    replica = trained(lambda of: Clamps(of, lr=0.1) if kind == "closure" else torch.optim.SGD(of, lr=0.1))
    (optimizer,) = replica.optimizers.values()
    if kind == "hook":
        optimizer.register_step_pre_hook(
            lambda this, *_: [one.grad.mul_(0.5) for group in this.param_groups for one in group["params"]] and None
        )
    said: list[str] = []
    keeping = keeper(replica, file, said)
    for number in range(2):
        keeping.step_begins(number)
        backward(replica, number)
        keeping.comes_to_gate(number, updates=True)
        optimizer.step(lambda: None)  # type: ignore[arg-type]
        if kind == "clamp":
            for one in replica.models["model"].parameters():
                one.data.clamp_(-0.1, 0.1)
        after = bits(replica)
        gradients = [one.grad for one in replica.models["model"].parameters()]
        ended(keeping, number + 1)
        assert bits(replica) == after, "all is put back"
        assert all(one.grad is grad for one, grad in zip(replica.models["model"].parameters(), gradients, strict=True))
    assert len(said) == 1 and why in said[0]
    assert keeping.kept == NOTHING_KEPT and keeping.why_not() and os.fstat(file.descriptor).st_blocks == 0


def test_without_room_nothing_is_written(file: ShardFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taskd.memory.free", lambda: 1000)
    said: list[str] = []
    keeping = keeper(trained(OPTIMIZERS["SGD"]), file, said)
    keeping.step_begins(0)
    keeping.comes_to_gate(0, updates=True)
    assert (
        len(said) == 1
        and "MB are left for each rank of this host" in said[0]
        and os.fstat(file.descriptor).st_blocks == 0
    )


def test_a_torn_slot_does_not_count(file: ShardFile) -> None:
    assert file.kept() == NOTHING_KEPT
    file.write_state(4, {"a": torch.arange(3.0)})
    assert file.kept() == Kept(4, 4)
    file.write_gradients(4, {"g": None}, Leads.PERHAPS)
    assert file.kept() == Kept(4, 4), "nobody knows where this leads"
    file.write_gradients(4, {"g": None}, Leads.SURELY)
    file.write_state(5, {"a": torch.arange(4.0)})
    assert file.kept() == Kept(4, 5)
    file.write_gradients(5, {"g": [torch.ones(2, 2, dtype=torch.bfloat16), torch.empty(0)]}, Leads.WITHOUT_UPDATE)
    assert file.kept() == Kept(4, 6) and file.gradients(4) is None
    os.pwrite(file.descriptor, bytes(8), (5 % 2) * SLOT_BYTES)  # its writer has died in it
    assert file.kept() == Kept(4, 4) and file.state(5) is None
    assert torch.equal(file.state(4)["a"], torch.arange(3.0))
    assert file.gradients(5)["g"][0].dtype == torch.bfloat16


def test_what_leads_elsewhere_is_refused(file: ShardFile) -> None:
    replica = trained(OPTIMIZERS["SGD"])
    keeping = keeper(replica, file)
    keeping.step_begins(3)
    with pytest.raises(PeerError, match="and not to 7 updates"):
        keeping.bring(7)
    other = trained(OPTIMIZERS["SGD"], more=nn.BatchNorm1d(2))
    with pytest.raises(PeerError, match="does not fit"):
        kept_shards.take_common(other, kept_shards.common(replica))


def first_steps(keeping: Keeping, replica: Replica, count: int = 2) -> None:
    """Do some ordinary steps."""
    for number in range(count):
        keeping.step_begins(number)
        backward(replica, number)
        keeping.comes_to_gate(number, updates=True)
        replica.optimizers["optimizer"].step()
        ended(keeping, number + 1)


def test_what_a_later_step_does_otherwise_ends_the_keeping(file: ShardFile) -> None:
    happens: dict[str, Callable[[Keeping], object]] = {
        "were changed behind the update": lambda keeping: ended(keeping, 4, moved=True),
        "communicates while it steps": lambda keeping: ended(keeping, 4, talks=True),
        "updates more than once": Keeping.updates_again,
        "an error has left a step": Keeping.step_left,
        "what was kept does not lead there": lambda keeping: keeping.given_up(moved=True),
    }
    for words, happen in happens.items():
        said: list[str] = []
        replica = trained(OPTIMIZERS["SGD"])
        keeping = keeper(replica, file, said)
        first_steps(keeping, replica, 3)
        assert keeping.kept == Kept(1, 3) and not said
        happen(keeping)
        assert len(said) == 1 and words in said[0] and "since" in said[0] and keeping.kept == NOTHING_KEPT
        first_steps(keeping, replica)
        assert keeping.kept == NOTHING_KEPT and len(said) == 1


class Counts(torch.optim.SGD):
    """Keeps a list outside of its state."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.seen: list[int] = []


def test_what_cannot_be_kept_is_known_before(file: ShardFile) -> None:
    assert not keeper(trained(OPTIMIZERS["SGD"]), file).why_not()
    assert "(seen)" in keeper(trained(lambda of: Counts(of, lr=0.1)), file).why_not()
    two = trained(OPTIMIZERS["SGD"])
    two.optimizers["second"] = torch.optim.SGD(two.models["model"].parameters(), lr=0.1)
    assert "several optimizers" in keeper(two, file).why_not()
    assert "recover.keep_shards" in Keeping(two, None, False, pytest.fail, pytest.fail).why_not()


def test_a_try_replaces_nothing_that_the_script_may_hold(file: ShardFile) -> None:
    rate = torch.tensor(0.01)
    replica = trained(lambda of: torch.optim.Adam(of, lr=rate, foreach=False, amsgrad=True))
    (optimizer,) = replica.optimizers.values()
    scheduler = replica.others["scheduler"] = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 1, 4])
    first_steps(keeper(replica, file), replica, 1)
    group, states = optimizer.param_groups[0], [*optimizer.state.values()]
    tensors = [id(value) for state in states for value in state.values()]
    keeping = keeper(replica, file)
    keeping.step_begins(1)
    backward(replica, 1)
    keeping.comes_to_gate(1, updates=True)
    optimizer.step()
    scheduler.step()
    drawn, lr = torch.random.get_rng_state(), rate.clone()
    assert ended(keeping, 2)
    assert optimizer.param_groups[0] is group and group["lr"] is rate and torch.equal(rate, lr)
    assert all(one is other for one, other in zip(optimizer.state.values(), states, strict=True))
    assert [id(value) for state in states for value in state.values()] == tensors
    assert torch.equal(torch.random.get_rng_state(), drawn) and type(scheduler.milestones).__name__ == "Counter"


def test_what_leads_beyond_the_agreed_update_is_forgotten(file: ShardFile) -> None:
    replica = trained(OPTIMIZERS["SGD"])
    first_steps(keeper(replica, file), replica, 3)
    keeping = keeper(replica, file)
    keeping.step_begins(3)
    assert keeping.kept == Kept(2, 3)
    heir = keeper(trained(OPTIMIZERS["SGD"]), file)
    assert heir.bring(2) and heir.kept == Kept(2, 2), "neither the state after it nor its gradients count now"
    before = os.pread(file.descriptor, 4096, 0)
    heir.step_begins(2)
    assert os.pread(file.descriptor, 4096, 0) == before, "the only state that is left is not written again"
    assert heir.kept == Kept(2, 2)


def test_it_ends_where_it_is_too_dear(file: ShardFile, monkeypatch: pytest.MonkeyPatch) -> None:
    for always, limit, ends in ((False, 0, True), (True, 0, False), (False, 10**12, False)):
        monkeypatch.setattr("taskd.worker.keeping._LEAST_NS", limit)
        monkeypatch.setattr("taskd.worker.keeping._MOST_OF_A_STEP", 0.0)
        said: list[str] = []
        told: list[str] = []
        replica = trained(OPTIMIZERS["SGD"])
        keeping = Keeping(replica, file, always, said.append, told.append)
        first_steps(keeping, replica, 10)
        assert len(said) == ends and len(told) == 1 - ends, (said, told)
        assert not said or "of each step (TASKD_RECOVER_KEEP_SHARDS=always" in said[0]
