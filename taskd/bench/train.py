"""The training that benchmarks disturb: `python train.py WIDTH DEPTH STEPS FILE [KIND]`, under taskd-run or torchrun.

The model is a stack of square layers. So WIDTH and DEPTH set the size of the state, and the computation is small. Under
taskd it uses the session; under torchrun the same lines run, and the session does nothing. It ends after STEPS steps,
or after the step whose number is in FILE, which is written before any rank has come that far. At its end every rank
prints one JSON line with its median step time, and rank 0 adds the hash of the weights. The begin and end of every step
are in times.RANK beside FILE.

KIND is one of: ddp; fsdp (sharded in two and replicated, on a two-dimensional mesh); flips (one bit flips where the
file "flip" beside FILE says so); raises (an error in the step after a SIGUSR1); stands (ranks hang in the step and in
the way that the file "stand" names); pauses (now and then a rank makes the others wait, as real ranks do); layers (the
same layers in a module of this script); attention (layers of a transformer in such a module); compiled-layers and
compiled-attention. It measures nothing else.
"""

from __future__ import annotations

import array
import ctypes
import hashlib
import json
import os
import re
import signal
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import taskd

SAMPLES = 8
HEADS = 4
TOKENS = 8


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows of numbers that are computed from their index."""

    def __init__(self, count: int, width: int) -> None:
        self.count, self.width = count, width

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.sin(torch.arange(self.width) * (index + 1.0))


class Own(torch.nn.Module):
    """A module of this script. Of a module of torch's own inside DistributedDataParallel the compiler takes nothing."""

    def __init__(self, layers: torch.nn.Module, tokens: int) -> None:
        """`tokens`: the number of equally long vectors that each row consists of."""
        super().__init__()
        self.layers, self.tokens = layers, tokens

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        parts = rows.view(rows.shape[0], self.tokens, -1)
        found: torch.Tensor = self.layers(parts).flatten(1)
        return found


def network(width: int, depth: int, kind: str) -> torch.nn.Module:
    """Return the model of this rank."""
    if kind.endswith("attention"):
        own = width // TOKENS
        blocks = [torch.nn.TransformerEncoderLayer(own, HEADS, 4 * own, batch_first=True) for _ in range(depth)]
        return Own(torch.nn.Sequential(*blocks), TOKENS)
    layers = [part for _ in range(depth) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    whole = torch.nn.Sequential(*layers, torch.nn.Dropout(0.1))
    return Own(whole, 1) if kind.endswith("layers") else whole


def parallel(module: torch.nn.Module, kind: str) -> torch.nn.Module:
    """Return the model distributed over all ranks."""
    if kind != "fsdp":
        return DistributedDataParallel(module)
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("replicas", "shards"))
    for layer in module.modules():
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


def flip_once(last: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Flip what the file "flip" says, if it names this rank, and note in which step."""
    wanted, done = last.with_name("flip"), last.with_name("flipped")
    if not wanted.exists() or done.exists():
        return
    order = json.loads(wanted.read_text())
    if order["rank"] != dist.get_rank():
        return
    *moment, name = order["what"].split()
    if name == "lr":
        optimizer.param_groups[0]["lr"] *= 1 + 2**-50
    else:
        parameter = model.get_parameter(f"module.{name}")
        tensor = optimizer.state[parameter][moment[0]] if moment else parameter
        tensor.detach().reshape(-1).view(torch.int32)[5] ^= (
            1 << 18
        )  # the lowest bit of a moment would be lost at the next update
    done.with_suffix(".new").write_text(str(step))
    done.with_suffix(".new").rename(done)


def stand_still(last: Path, step: int, groups: list[dist.ProcessGroup]) -> None:
    """Hang for ever if the file "stand" names this step; note the time before."""
    wanted, rank = last.with_name("stand"), dist.get_rank()
    number, way = wanted.read_text().split() if wanted.exists() else ("-1", "")
    if step != int(number) or (rank != 1 and (way != "order_hang" or rank > 1)):
        return
    noted = last.with_name(f"stood.{rank}")
    noted.with_suffix(".new").write_text(str(time.time_ns()))
    noted.with_suffix(".new").rename(noted)
    if way == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif way == "gil_spin":
        re.match("(a+)+$", "a" * 64 + "b")
    elif way == "c_hang":
        ctypes.PyDLL(None).sleep(1_000_000)
    elif way == "io_hang":
        os.read(os.pipe()[0], 1)
    elif way == "collective_hang":
        time.sleep(1e6)  # this is the hang
    elif way == "order_hang":
        for group in groups if rank else groups[::-1]:
            dist.all_reduce(torch.ones(1), group=group)


def pause(last: Path, step: int, model: torch.nn.Module) -> None:
    """Let one rank pause now and then: an evaluation, a checkpoint, a slow answer, a longer step."""
    rank = dist.get_rank()
    if step % 1000 == 400 and rank == 0:
        until = time.monotonic() + 4
        while time.monotonic() < until:
            model(torch.ones(SAMPLES, next(model.parameters()).shape[-1])).sum()
    elif step % 1000 == 600 and rank == 0:
        torch.save(torch.zeros(50_000_000), last.with_name("checkpoint"))
    elif step % 1000 == 800 and rank == 2:
        time.sleep(2)  # a slow answer
    elif step % 1000 > 900 and rank == step % 3:
        time.sleep(0.05)  # a longer step


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """Return the full parameter, also if it is sharded."""
    own = parameter.detach()
    return own.full_tensor() if isinstance(own, DTensor) else own


def main(width: int, depth: int, steps: int, last: Path, kind: str = "ddp") -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    data = Rows(steps * SAMPLES * world_size, width)
    loader = torch.utils.data.DataLoader(data, batch_sampler=taskd.StepSampler(data, SAMPLES))
    inner = network(width, depth, kind)
    model = parallel(inner, kind)
    trained: Any = torch.compile(model) if kind.startswith("compiled") else model
    evaluated = torch.nn.Sequential(*list(inner.children())[:-1])  # without the dropout, which draws numbers
    groups = [dist.new_group([0, 1]) for _ in range(2 if kind == "stands" else 0)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    session = taskd.session()
    session.register(model=model, optimizer=optimizer)
    times, ends, told = array.array("q"), None, SimpleNamespace(now=False)
    if kind == "raises":
        signal.signal(signal.SIGUSR1, lambda *_: setattr(told, "now", True))
    for step in session.steps(loader):
        times.append(time.monotonic_ns())
        with step as rows:
            if kind == "flips":
                flip_once(last, step.number, model, optimizer)
            if kind == "stands":
                stand_still(last, step.number, groups)
            if kind == "pauses":
                pause(last, step.number, evaluated)
            if told.now:
                told.now = False
                raise ValueError("told to raise")
            optimizer.zero_grad()
            trained(rows).square().mean().backward()
            optimizer.step()
        times.append(time.monotonic_ns())
        if ends is None and last.exists():
            ends = int(last.read_text())
        if step.number == ends:
            break
        if ends is not None and step.number > ends:
            raise SystemExit(f"rank {rank} has ended step {step.number} and is told only now that {ends} is the last")
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(whole(parameter).numpy().tobytes())
    last.with_name(f"times.{rank}").write_bytes(times.tobytes())
    lengths = [end - begin for begin, end in zip(times[::2], times[1::2], strict=True)]
    found: dict[str, object] = {"rank": rank, "step_ms": statistics.median(lengths[len(lengths) // 5 :]) / 1e6}
    found["proof_ns"], found["whole_ns"] = session.proof_ns
    found["steps_ns"] = sum(lengths)
    found |= {"weights": digest.hexdigest()} if rank == 0 else {}
    sys.stdout.write(json.dumps(found) + "\n")  # in one write: the ranks share a pipe
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), *sys.argv[5:])
