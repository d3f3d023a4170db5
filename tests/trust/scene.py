"""The common part of the small trainings of this folder: two ranks, a loader, a death at one place of one step.

A training says where it is (`here("forward")`). Rank 1 kills itself once (or all `victims` do): at the place and step
that --place and --at name, or before the line of Python that --line counts. A training prints "weights RANK HASH" at
its end. The trainings themselves show what they do wrong in a step.
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
    """Write the line in one piece. An unbuffered print() writes the end of the line separately."""
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
    """Traces the lines of Python that this process runs in the training, in this file and in optimizers."""

    def __init__(self, last: int, more: tuple[Path, ...] = ()) -> None:
        """`last`: the number of the line before which the process dies; `more`: folders with other code to trace."""
        self.seen: list[str] = []
        """The lines in the order in which they ran, each as often as it ran."""
        self._last = last
        self._ours = tuple(map(str, (Path(__file__).parent, Path(torch.optim.__file__).parent, *more)))
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
    """Kill this process with SIGKILL, before it runs another line."""
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
        self.victims: tuple[int, ...] = (1,)
        say(f"begin {self.rank}")
        say(f"process {self.rank} {os.getpid()}")

    def trace(self, *more: Path) -> None:
        """Count lines from here on, also in code in the folders `more`. The code before the first loop is set-up: a
        death there makes all start over."""
        if self._traced():
            Lines(self.args.line, more)  # held by the interpreter, not by the scene that the loop uses

    def _traced(self) -> bool:
        """Whether to trace: only the first process of rank 1, if --line is given. With --line 0 nobody dies."""
        traced = self.args.folder / "traced"
        if self.rank != 1 or self.args.line < 0 or traced.exists():  # a newcomer on its way may not write files
            return False
        traced.touch()
        return True

    def loader(self, samples: type[Noise] = Noise) -> DataLoader[Any]:
        """Return a loader whose batches are dicts."""
        self.trace()
        torch.manual_seed(100 + self.rank)
        data = samples(STEPS * BATCH * dist.get_world_size())
        return DataLoader(data, batch_sampler=taskd.StepSampler(data, BATCH, seed=3), generator=torch.Generator())

    def here(self, step: Any, place: str) -> None:
        """Kill this rank here, if it is one of the victims and this is the place."""
        self.trace()  # a script with a loader of its own has not done so
        if (step.number, place) != (self.args.at, self.args.place) or step.rehearsal or self.rank not in self.victims:
            return
        if self.dead.exists():  # a newcomer on its way to the loop may not write files
            return
        self.dead.touch()
        die()

    @property
    def dead(self) -> Path:
        """What is there once this rank has died."""
        return self.args.folder / f"dead {self.rank}"

    def end(self, *items: Any) -> None:
        """Print a hash of these tensors, modules and numbers, and end together with the other ranks."""
        self.weights(*items)
        dist.barrier()
        dist.destroy_process_group()

    def weights(self, *items: Any) -> None:
        """Print a hash of these tensors, modules and numbers."""
        if (tracer := sys.gettrace()) is not None:
            (self.args.folder / "lines").write_text("\n".join(tracer.__self__.seen))
        found: list[torch.Tensor] = []
        for item in items:
            values: Iterable[Any] = (*item.parameters(), *item.buffers()) if isinstance(item, nn.Module) else [item]
            found += [torch.as_tensor(value).detach().double().flatten() for value in values]
        say(f"weights {self.rank} {hashlib.sha256(torch.cat(found).numpy().tobytes()).hexdigest()}")


def average_gradients(model: nn.Module) -> None:
    """Average the gradients in plain sight after the backward, in place of DistributedDataParallel."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()


def metric_of(value: torch.Tensor) -> torch.Tensor:
    """Return the sum over all ranks. This is a collective."""
    found = value.detach().clone()
    dist.all_reduce(found)
    return found


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Return how far the output is from the input."""
    return nn.functional.mse_loss(model(x), x)
