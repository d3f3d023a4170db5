"""Digests of a replica: what has a digest, what changes it, and what is left out and named."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from taskd import _native
from taskd.core import limits
from taskd.state import digests as module
from taskd.state.digests import Digests
from taskd.state.replica import Replica


class Net(nn.Module):
    """A model with tensors of each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.Linear(4, 2, dtype=torch.bfloat16),
        )
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.none = nn.Parameter(torch.empty(0, 3))


def trained(steps: int = 2) -> Replica:
    """Return a trained replica, the same every time."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 100)
    for _ in range(steps):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, dtype=parameter.dtype)
        optimizer.step()
        scheduler.step()
    return Replica(models={"model": model}, optimizers={"optimizer": optimizer}, others={"scheduler": scheduler})


def of(replica: Replica) -> Digests:
    found = Digests(replica, _native.digests)
    assert found.look() and not found.look()
    return found


def words(digests: Digests) -> dict[str, bytes]:
    """Return each unit's digest by its name."""
    count, size = len(digests.units), limits.DIGEST_WORD
    data = digests.of(0, count)
    names = digests.names(0, count).split("\n")
    assert len(names) == count == len({*names})
    return {name: data[at * size : (at + 1) * size] for at, name in enumerate(names)}


def changed(digests: Digests, before: dict[str, bytes]) -> list[str]:
    return [name for name, word in words(digests).items() if word != before[name]]


def test_replicas_that_were_made_apart_have_the_same_digests() -> None:
    one, other = of(trained()), of(trained())
    assert one.number == other.number and words(one) == words(other) and not one.missing
    assert all(any(word) for word in words(one).values())


def test_a_slice_gives_what_the_whole_gives() -> None:
    digests = of(trained())
    whole = digests.of(0, len(digests.units))
    assert whole[3 * 8 : 9 * 8] == digests.of(3, 9) and digests.of(5, 5) == b""


def test_any_bit_of_any_tensor_changes_its_own_digest_and_no_other() -> None:
    replica = trained()
    digests = of(replica)
    before = words(digests)
    tensors = {name: tensor for name, tensor in replica.tensors() if isinstance(tensor, nn.Parameter)}
    optimizer = replica.optimizers["optimizer"]
    moments = {f"optimizer, exp_avg of {name}": optimizer.state[one]["exp_avg"] for name, one in tensors.items()}
    for name, tensor in (tensors | moments).items():
        raw = tensor.detach().reshape(-1).view(torch.uint8)
        for at in range(0, raw.numel(), 7):
            raw[at] ^= 1 << (at % 8)
            assert changed(digests, before) == [name]
            raw[at] ^= 1 << (at % 8)
    assert changed(digests, before) == []


def test_settings_counters_and_modes_have_digests() -> None:
    replica = trained()
    digests = of(replica)
    before = words(digests)
    replica.optimizers["optimizer"].param_groups[0]["lr"] *= 1 + 1e-15
    assert changed(digests, before) == ["optimizer, lr of group 0"]
    replica.others["scheduler"].last_epoch += 1
    assert "scheduler['last_epoch']" in changed(digests, before)
    model = replica.models["model"]
    model.norm.eval()
    model.first.weight.requires_grad_(False)
    found = changed(digests, before)
    assert found[:2] == ["model, the modes of its modules", "model, what learns"] and digests.harmless > 2


def test_a_rank_that_takes_an_update_from_another_one_has_its_digests() -> None:
    """An optimizer that loads a state replaces its dicts of settings and of state."""
    behind, ahead = trained(2), trained(3)
    digests = of(behind)
    for (_, mine), (_, theirs) in zip(behind.tensors(), ahead.tensors(), strict=True):
        mine.detach().copy_(theirs)
    behind.load_small(copy.deepcopy(ahead.small()))
    for optimizer in (*behind.optimizers.values(), *ahead.optimizers.values()):
        optimizer.param_groups[0]["lr"] /= 3  # what happens after that is seen, too
    assert not digests.look()
    assert words(digests) == words(of(ahead))


def test_buffers_are_this_ranks_own() -> None:
    replica = trained()
    average = AveragedModel(replica.models["model"], use_buffers=True)
    replica.others["average"] = average
    digests = of(replica)
    before = words(digests)
    replica.models["model"].norm.running_mean += 1
    average.module.norm.running_mean += 1
    assert changed(digests, before) == []
    average.n_averaged += 1
    average.module.second.weight.detach()[1, 1] = 7
    assert changed(digests, before) == ["average, n_averaged", "average.second.weight"]


def test_memory_in_another_order_and_views_are_read_whole() -> None:
    replica = trained()
    weight = replica.models["model"].first.weight
    weight.data = weight.detach().to(memory_format=torch.channels_last)
    holes = torch.zeros(4, 8)[:, ::2]
    replica.others["holes"] = type("Holes", (), {"state_dict": lambda _: {"holes": holes}})()
    digests = of(replica)
    before = words(digests)
    weight.detach()[3, 2, 1, 1] += 1
    assert changed(digests, before) == ["model.first.weight"]
    holes[3, 3] = 1
    assert "holes['holes']" in changed(digests, before)


def test_new_state_of_an_optimizer_makes_other_units() -> None:
    replica = trained(0)
    digests = Digests(replica, _native.digests)
    assert digests.look()
    number = digests.number
    parameter = replica.models["model"].scale
    parameter.grad = torch.ones(())
    replica.optimizers["optimizer"].step()
    assert digests.look() and digests.number != number
    assert "optimizer, exp_avg of model.scale" in words(digests)


def test_what_an_optimizer_puts_in_another_ones_place_is_found() -> None:
    replica = trained()
    digests = of(replica)
    before = words(digests)
    optimizer = replica.optimizers["optimizer"]
    optimizer.load_state_dict(optimizer.state_dict())
    assert changed(digests, before) == []
    optimizer.state[replica.models["model"].scale]["exp_avg"] = torch.tensor(9.0)
    assert changed(digests, before) == ["optimizer, exp_avg of model.scale"]


class Strange(torch.Tensor):
    """A tensor class of which nobody knows where its contents lie."""


def test_what_has_no_digest_is_named_and_the_rest_is_compared() -> None:
    replica = trained()
    state: dict[str, Any] = {"table": torch.ones(3).as_subclass(Strange), "lock": object(), "count": 3}
    replica.others["thing"] = type("Thing", (), {"state_dict": lambda _: state})()
    digests = of(replica)
    assert digests.missing == "no digest can be computed of thing['lock'] (a object) and thing['table'] (a Strange)"
    before = words(digests)
    assert "thing['table']" not in before
    state["count"] = 4
    assert changed(digests, before) == ["thing['count']"]


def test_a_large_tensor_is_several_units() -> None:
    replica = Replica(models={"model": nn.Linear(1024, 700, bias=False)})
    digests = of(replica)
    assert digests.names(2, 5).split("\n") == [
        "model.weight, MiB 0 to 1",
        "model.weight, MiB 1 to 2",
        "model.weight, MiB 2 to 2",
    ]
    before = words(digests)
    replica.models["model"].weight.detach()[699, 1023] += 1
    assert changed(digests, before) == ["model.weight, MiB 2 to 2"]


def test_too_many_units_are_put_together() -> None:
    model = nn.Module()
    for at in range(3000):
        model.register_parameter(f"p{at}", nn.Parameter(torch.zeros(2)))
    digests = of(Replica(models={"model": model}))
    assert len(digests.units) <= limits.PROOF_UNITS and digests.harmless == 1, "the modes are a unit of their own"
    before = words(digests)
    model.p1234.detach()[1] = 1
    (name,) = changed(digests, before)
    first, last = name.split(" to ")
    assert int(first.removeprefix("model.p")) <= 1234 <= int(last.removeprefix("model.p"))
    assert len(digests.names(0, len(digests.units))) <= limits.PROOF_NAMES


def test_a_device_sums_up_what_any_bit_changes() -> None:
    tensor = torch.randn(1001)
    seen = {module._on_device(tensor, 0, -1)}
    raw = tensor.view(torch.uint8)
    for at in range(0, raw.numel(), 13):
        raw[at] ^= 1 << (at % 8)
        seen.add(module._on_device(tensor, 0, -1))
        raw[at] ^= 1 << (at % 8)
    assert len(seen) == 1 + len(range(0, raw.numel(), 13))
    assert module._on_device(tensor, 0, 400) != module._on_device(tensor, 400, 400)
