"""What the small trainings of this folder have in common: two ranks, a loader, a death at one place of one step.

A training says where it is (`here("forward")`); rank 1 kills itself where --place and --at say so, once. It prints
"weights RANK HASH" at its end. What is done wrong in a step stands in the trainings themselves.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

import taskd

BATCH = 4
STEPS = 7


def say(line: str) -> None:
    """In one piece: unbuffered, print() writes the line's end by itself."""
    os.write(1, f"{line}\n".encode())


class Noise(Dataset[dict[str, Any]]):
    """Samples that depend on their number only."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": 20 * torch.randn(8, generator=torch.Generator().manual_seed(index)), "more": [torch.ones(1)]}


class Net(nn.Module):
    """A layer, a dropout, a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.second = nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.second(self.drop(torch.tanh(self.first(x))))
        return found


class Scene:
    """The process group, the loader and the death."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--folder", type=Path, required=True)
        parser.add_argument("--at", type=int, required=True)
        parser.add_argument("--place", default="")
        self.args = parser.parse_args()
        torch.set_num_threads(1)
        torch.manual_seed(7)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.number = -1
        say(f"begin {self.rank}")
        say(f"process {self.rank} {os.getpid()}")

    def loader(self) -> DataLoader[Any]:
        """Batches that are dicts."""
        torch.manual_seed(100 + self.rank)
        data = Noise(STEPS * BATCH * dist.get_world_size())
        return DataLoader(data, batch_sampler=taskd.StepSampler(data, BATCH, seed=3), generator=torch.Generator())

    def here(self, step: Any, place: str) -> None:
        """Rank 1 dies here, if this is the place."""
        if (self.rank, step.number, place) != (1, self.args.at, self.args.place) or step.rehearsal:
            return
        dead = self.args.folder / "dead"
        if dead.exists():  # a newcomer on its way may not write
            return
        dead.touch()
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    def end(self, *items: Any) -> None:
        """Say what these tensors, modules and numbers are, together with the others."""
        self.weights(*items)
        dist.barrier()
        dist.destroy_process_group()

    def weights(self, *items: Any) -> None:
        """Say what these tensors, modules and numbers are."""
        found: list[torch.Tensor] = []
        for item in items:
            values: Iterable[Any] = (*item.parameters(), *item.buffers()) if isinstance(item, nn.Module) else [item]
            found += [torch.as_tensor(value).detach().double().flatten() for value in values]
        say(f"weights {self.rank} {hashlib.sha256(torch.cat(found).numpy().tobytes()).hexdigest()}")


def average_gradients(model: nn.Module) -> None:
    """In place of DistributedDataParallel: in the open, and after the backward."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def metric_of(value: torch.Tensor) -> torch.Tensor:
    """The same number on all ranks; a collective."""
    found = value.detach().clone()
    dist.all_reduce(found)
    return found


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """How far the output is from the input."""
    return nn.functional.mse_loss(model(x), x)
