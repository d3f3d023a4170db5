"""A newcomer's DistributedDataParallel takes over the buckets of the other ranks before it has run a backward pass.

It runs in this process, over a group of one rank. The test is about the order of DDP's parameters, not about what is
sent.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from taskd.state import manifest
from taskd.state.replica import Replica


@pytest.fixture(autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Crossed(nn.Module):
    """A module that uses its layers in another order than it lists them."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.last, self.words, self.first = nn.Linear(9, 300), nn.Embedding(5, 8, sparse=sparse), nn.Linear(8, 9)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(self.words(numbers)))


def parallel(sparse: bool) -> DistributedDataParallel:
    torch.manual_seed(1)
    return DistributedDataParallel(Crossed(sparse), bucket_cap_mb=0.001)


def step(model: DistributedDataParallel) -> list[torch.Tensor]:
    model.zero_grad()
    model(torch.tensor([1, 2])).square().sum().backward()
    return [parameter.grad.to_dense().clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("sparse", [False, True])
def test_buckets_are_taken_over(sparse: bool) -> None:
    used, fresh = parallel(sparse), parallel(sparse)
    for _ in range(2):
        wanted = step(used)
    others, newcomer = Replica({"one": used, "two": parallel(sparse)}), Replica({"one": fresh, "two": parallel(sparse)})
    settled = manifest.rebuilt(others)
    assert settled == [True, False] and manifest.rebuilt(newcomer) == [False, False]
    manifest.settle_buckets(newcomer, settled, [manifest.orders(newcomer), manifest.orders(others)])
    assert manifest.rebuilt(newcomer) == settled
    assert manifest.buckets(newcomer) == manifest.buckets(others) != {"0": "", "1": ""}
    assert all(parameter.grad is None for parameter in fresh.parameters())
    assert all(torch.equal(one, two) for one, two in zip(wanted, step(fresh), strict=True))
