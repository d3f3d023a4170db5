"""When a rank tells its digests: at the first update, after repairs, at its slices' turns. A failure ends no step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from taskd.core import limits
from taskd.state.digests import Digests
from taskd.state.replica import Replica
from taskd.worker import prover as prover_module
from taskd.worker.heal import Repair
from taskd.worker.prover import Prover


class Told(Repair):
    """Records what is told."""

    records = True

    def __init__(self) -> None:
        self.updates: list[tuple[int, bool]] = []  # the update, and whether the whole state is told

    def tell_proof(self, digests: Digests, updates: int, every: int, first: int, end: int) -> None:
        assert len(digests.of(first, end)) == (end - first) * limits.DIGEST_WORD
        self.updates.append((updates, end - first == len(digests.units)))


@pytest.fixture(autouse=True)
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)


def replica_of(model: torch.nn.Module) -> Replica:
    optimizer = torch.optim.Adam(model.parameters())
    return Replica(models={"model": model}, optimizers={"optimizer": optimizer})


def train(replica: Replica) -> None:
    for parameter in replica.models["model"].parameters():
        parameter.grad = torch.ones_like(parameter)
    replica.optimizers["optimizer"].step()


def test_the_whole_state_after_the_first_update_and_after_two_that_follow_a_repair() -> None:
    replica, told = replica_of(torch.nn.Linear(3, 3)), Told()
    prover = Prover(replica, told)
    for updates in range(1, 9):
        train(replica)
        if updates == 5:
            prover.healed()
        prover.committed(updates)
    assert told.updates == [(1, True), (5, True), (6, True)]
    assert prover.whole_ns > 0


def test_the_whole_state_when_an_optimizer_has_made_more() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    replica, told = replica_of(model), Told()
    prover = Prover(replica, told)
    for updates in range(1, 5):
        for parameter in model.parameters() if updates >= 3 else model[0].parameters():
            parameter.grad = torch.ones_like(parameter)
        replica.optimizers["optimizer"].step()
        prover.committed(updates)
    assert told.updates == [(1, True), (3, True)]


def test_slices_have_their_turns_at_updates_that_the_rhythm_divides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROOF_PERIOD_NS", 1)
    monkeypatch.setattr(limits, "PROOF_SHARE", 0)  # whatever it costs
    replica, told = replica_of(torch.nn.Linear(600, 600)), Told()
    train(replica)
    prover = Prover(replica, told)
    for updates in range(1, 200):
        prover.committed(updates)
    slices = [updates for updates, whole in told.updates if not whole]
    assert slices == [*range(slices[0], 200)] and slices[0] <= 1 + limits.PROOF_MEASURES + 1
    assert prover.spent_ns > 0


def test_between_two_turns_nothing_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    look = Digests.look
    monkeypatch.setattr(Digests, "look", lambda digests: looks.append(updates) or look(digests))
    replica, told = replica_of(torch.nn.Linear(600, 600)), Told()
    train(replica)
    prover = Prover(replica, told)
    for updates in range(1, 20_000):
        if updates == 10_001:
            prover.healed()
        prover.committed(updates)
    measured = 1 + limits.PROOF_MEASURES
    assert looks[:measured] == [*range(1, 1 + measured)]
    assert {10_001, 10_002} < {*looks} and len(looks) < 200, looks


class Refuses:
    """An object of the user's that cannot be asked twice."""

    def __init__(self) -> None:
        self.asked = 0

    def state_dict(self) -> dict[str, Any]:
        self.asked += 1
        if self.asked > 1:
            raise OSError("the state is in use")
        return {"count": 1}


def test_an_object_that_cannot_be_asked_costs_the_proofs_and_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    replica, told = replica_of(torch.nn.Linear(3, 3)), Told()
    train(replica)
    replica.others["object"] = Refuses()
    prover = Prover(replica, told)
    said: list[str] = []
    monkeypatch.setattr(prover_module._logger, "log", lambda _level, text, *values: said.append(text % values))
    for updates in range(1, 5):
        prover.committed(updates)
    assert told.updates == []
    assert said == ["what this rank holds is no longer compared with the others: the state is in use"]


def test_one_rank_has_nobody_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    replica, told = replica_of(torch.nn.Linear(3, 3)), Told()
    prover = Prover(replica, told)
    prover.committed(1)
    assert told.updates == []
