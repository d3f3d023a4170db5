"""What the small trainings of this folder have in common: two ranks, a loader, a death at one place of one step.

A training says where it is (`here("forward")`); rank 1 kills itself where --place and --at say so, once, or in front of
the line of Python that --line counts. It prints "weights RANK HASH" at its end. What is done wrong in a step stands in
the trainings themselves.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
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


class Lines:
    """The lines of Python that this process runs, in the training itself, in this file and in optimizers."""

    def __init__(self, last: int) -> None:
        """`last`: in front of which it dies."""
        self.seen: list[str] = []
        """In their order, each as often as it runs."""
        self._last = last
        self._ours = (str(Path(__file__).parent), str(Path(torch.optim.__file__).parent))
        sys.settrace(self._enter)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            frame.f_trace = self._enter(frame, "call", None)
            frame = frame.f_back

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(self._ours) else None

    def _line(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            self.seen.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
            if len(self.seen) == self._last:
                die()
        return self._line


def die() -> None:
    """By SIGKILL, and not a line later."""
    os.kill(os.getpid(), signal.SIGKILL)
    signal.pause()


class Scene:
    """The process group, the loader and the death."""

    def __init__(self) -> None:
        parser = argparse.ArgumentParser()
        parser.add_argument("--folder", type=Path, required=True)
        parser.add_argument("--at", type=int, required=True)
        parser.add_argument("--place", default="")
        parser.add_argument("--line", type=int, default=-1)
        self.args = parser.parse_args()
        torch.set_num_threads(1)
        torch.manual_seed(7)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.number = -1
        say(f"begin {self.rank}")
        say(f"process {self.rank} {os.getpid()}")

    def trace(self) -> None:
        """From here on, lines count. What stands before the first loop is set-up: a death in it starts all over."""
        if self._traced():
            Lines(self.args.line)  # which the interpreter holds, and not the scene that the loop uses

    def _traced(self) -> bool:
        """The first rank 1 of the training alone, if --line is given; 0 counts, and nobody dies."""
        if self.rank != 1 or self.args.line < 0:
            return False
        try:
            (self.args.folder / "traced").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def loader(self, samples: type[Noise] = Noise) -> DataLoader[Any]:
        """Batches that are dicts."""
        self.trace()
        torch.manual_seed(100 + self.rank)
        data = samples(STEPS * BATCH * dist.get_world_size())
        return DataLoader(data, batch_sampler=taskd.StepSampler(data, BATCH, seed=3), generator=torch.Generator())

    def here(self, step: Any, place: str) -> None:
        """Rank 1 dies here, if this is the place."""
        if (self.rank, step.number, place) != (1, self.args.at, self.args.place) or step.rehearsal:
            return
        dead = self.args.folder / "dead"
        if dead.exists():  # a newcomer on its way may not write
            return
        dead.touch()
        die()

    def end(self, *items: Any) -> None:
        """Say what these tensors, modules and numbers are, together with the others."""
        self.weights(*items)
        dist.barrier()
        dist.destroy_process_group()

    def weights(self, *items: Any) -> None:
        """Say what these tensors, modules and numbers are."""
        if (tracer := sys.gettrace()) is not None:
            (self.args.folder / "lines").write_text("\n".join(tracer.__self__.seen))
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
