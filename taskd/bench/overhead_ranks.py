"""One rank of `taskd bench overhead`: RANK SIZE FOLDER TURNS; prints all runs of both sides as one JSON line.

Both sides are process groups made by torch, with the backend replaced in the same way: once by a bare inner group, and
once by a guard over another one of the same kind. In every turn the sides alternate many times. The placement of the
ranks on the processors affects an operation more than a guard does, and in this way it affects both sides. Each turn
gives the median of the operations or steps of each side. It judges nothing.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from taskd import _c10d
from taskd.comm import cpu

OPERATIONS, STEPS, WARM_UP = 1000, 40, 5
SLICES = 20
"""How often each side runs within a turn."""
WIDTH, DEPTH, SAMPLES = 512, 4, 64
TIMEOUT = timedelta(seconds=60)


def make_group(side: str, rank: int, size: int, store: Any) -> Any:
    """Make a process group over an inner group of the job's kind, guarded or bare."""
    members = list(range(size))
    ordinal = ["bare", "guarded"].index(side)
    identity = _c10d.identity_of(members, ordinal)
    group = dist.new_group(members)
    name, description = group.group_name, group.group_desc
    inner = cpu.make_inner(
        dist.PrefixStore(side, store), rank, size, TIMEOUT, epoch=0, identity=identity, members=members
    )
    backend = inner.backend
    if side == "guarded":
        backend = _c10d.Guard(rank, size, backend, members, ordinal, timeout=TIMEOUT, sockets=inner.sockets)
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.CUSTOM, backend)
    group._set_group_name(name)
    group._set_group_desc(description)
    return group


def layers() -> torch.nn.Sequential:
    torch.manual_seed(7)
    parts = [part for _ in range(DEPTH) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*parts)


def trainer(model: torch.nn.Module) -> Callable[[], None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    rows = torch.randn(SAMPLES, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()

    return step


def sharded(group: Any) -> torch.nn.Module:
    mesh = DeviceMesh.from_group(group, "cpu")
    model = layers()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def operation(group: Any) -> Callable[[], None]:
    tensor = torch.ones(2)

    def all_reduce() -> None:
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=group)

    return all_reduce


def times_s(call: Callable[[], None], count: int) -> list[float]:
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return times


def take_turns(calls: dict[str, Callable[[], None]], count: int) -> dict[str, float]:
    """Return the median of `count` calls of each side."""
    times: dict[str, list[float]] = {side: [] for side in calls}
    for number in range(SLICES):
        for side in sorted(calls, reverse=number % 2 == 1):
            dist.barrier()
            times[side] += times_s(calls[side], count // SLICES)
    return {side: statistics.median(taken) for side, taken in times.items()}


def main(rank: int, size: int, folder: str, turns: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=TIMEOUT)
    store = dist.FileStore(f"{folder}/meeting", size)
    groups = {side: make_group(side, rank, size, store) for side in ("bare", "guarded")}
    makers = {
        "op_us": (operation, OPERATIONS, 1e6),
        "ddp_ms": (lambda group: trainer(DistributedDataParallel(layers(), process_group=group)), STEPS, 1e3),
        "fsdp_ms": (lambda group: trainer(sharded(group)), STEPS, 1e3),
    }
    found: dict[str, dict[str, list[float]]] = {side: {name: [] for name in makers} for side in groups}
    for name, (make, count, unit) in makers.items():
        calls = {side: make(group) for side, group in groups.items()}
        for call in calls.values():
            times_s(call, WARM_UP)
        for _ in range(turns):
            for side, median in take_turns(calls, count).items():
                found[side][name].append(median * unit)
    dist.barrier()
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
