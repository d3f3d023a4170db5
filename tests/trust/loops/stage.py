"""The common part of the small trainings of this folder: two ranks, three epochs of four steps, a death at one place.

A training says where it is (`here("backward", number)`) and what it sees. The rank that --who names kills itself once,
at the place and number that --place and --at name. A training prints "weights RANK HASH" at its end. The trainings
themselves show what they do in and between the loops.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import Dataset

from tests.trust.scene import Net, average_gradients, loss_of, say

BATCH, EPOCHS, PER_EPOCH = 4, 3, 4


class Numbered(Dataset[tuple[int, torch.Tensor]]):
    """Samples that depend on their number only. Each comes with its number."""

    def __len__(self) -> int:
        return 2 * BATCH * PER_EPOCH

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, torch.randn(8, generator=torch.Generator().manual_seed(index))


class Stage:
    """The process group, a model, and the death."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--folder", type=Path, required=True)
        parser.add_argument("--kind", default="")
        parser.add_argument("--who", type=int, default=1)
        parser.add_argument("--at", type=int, default=-1)
        parser.add_argument("--place", default="")
        self.args = parser.parse_args()
        self.folder: Path = self.args.folder
        torch.set_num_threads(1)
        torch.manual_seed(7)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.data = Numbered()
        self.model = Net()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        torch.manual_seed(100 + self.rank)
        say(f"begin {self.rank}")

    def here(self, place: str, number: int) -> None:
        """Kill one rank here, if this is the place."""
        if (self.rank, number, place) != (self.args.who, self.args.at, self.args.place):
            return
        mark = self.folder / "dead"
        if mark.exists():
            return
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    def train(self, batch: tuple[torch.Tensor, torch.Tensor], number: int, rehearsal: bool = False) -> float:
        """Train one step. Return the loss."""
        indices, x = batch
        if not rehearsal:
            say(f"saw {self.rank} {number} {indices.tolist()}")
        self.optimizer.zero_grad()
        loss = loss_of(self.model, x)
        self.here("forward", number)
        loss.backward()
        self.here("backward", number)
        average_gradients(self.model)
        self.here("reduced", number)
        self.optimizer.step()
        self.here("updated", number)
        return float(loss.detach())

    def end(self, *modules: nn.Module) -> None:
        """Print a hash of the weights, and end."""
        found = [one.detach().flatten() for module in (self.model, *modules) for one in module.parameters()]
        say(f"weights {self.rank} {hashlib.sha256(torch.cat(found).numpy().tobytes()).hexdigest()}")
        dist.barrier()
        dist.destroy_process_group()
