"""The tasks of ranks that compare two backends in one run, and the tasks that measure the transport alone.

Both sides of a comparison are groups of the same processes and take turns, so that other work of the machine affects
both. The results are times, one per turn. members.py collects them, and transport.py makes figures of them. It judges
nothing.
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import taskd
from taskd.bench.exchange import Spec, prepare, say
from taskd.comm import rail

SIDES = ("gloo", "rail")
THREAD = "taskd-rail"
WARM, EPOCHS = 4, 24
FEW, MANY = 1 << 10, 1 << 17
"""The number of elements that fit into one small message, and the number that is sent in pieces."""


def _sides(spec: Spec) -> dict[str, Any]:
    """Make a group for each side. Both sides may have the same backend, to test the measurement itself."""
    names = spec.words.get("sides", SIDES)
    found = {}
    for index, name in enumerate(names):
        prepare(name)
        found[f"{index}"] = dist.new_group(backend=name)
    return found


def _turns(spec: Spec, block: Callable[[Any], float], groups: dict[str, Any]) -> list[list[float]]:
    """For each turn, the time of a block on either side. The side that begins alternates."""
    turns = []
    for turn in range(spec.words["turns"]):
        times = {}
        for name in sorted(groups, reverse=bool(turn % 2)):
            dist.barrier()
            times[name] = block(groups[name])
        turns.append([times["0"], times["1"]])
    return turns


def compare(spec: Spec) -> None:
    """Print seconds per operation on both sides, by turn, for each case: operation, elements, count per block."""
    groups = _sides(spec)
    for name, kind, elements, count in spec.words["cases"]:
        data = torch.ones(elements)
        whole = torch.empty(elements * spec.size if kind == "all_gather" else 0)

        def block(group: Any, kind: str = kind, count: int = count, data: Any = data, whole: Any = whole) -> float:
            begin = time.perf_counter()
            for _ in range(count):
                if kind == "all_gather":
                    dist.all_gather_into_tensor(whole, data, group=group)
                else:
                    data.fill_(1.0)  # else the sums would overflow; both sides pay for it
                    dist.all_reduce(data, group=group)
            return (time.perf_counter() - begin) / count

        for group in groups.values():
            block(group, count=max(1, count // 4))  # makes connections, buffers and pages
        turns = _turns(spec, block, groups)
        if spec.rank == 0:
            say(case=name, turns=turns)
        del data, whole
        gc.collect()
    say(done=True)


def train(spec: Spec) -> None:
    """Print milliseconds per step of the sample's model under DDP on both sides, by turn."""
    sys.path.insert(0, str(Path(taskd.__file__).resolve().parent.parent / "samples"))
    from tiny_gpt import TextWindows, TinyGPT  # type: ignore[import-not-found]

    groups = _sides(spec)
    steps, batch = spec.words["steps"], spec.words["batch"]
    data = TextWindows(1, context=64, count=batch)
    inputs, answers = (torch.stack(list(column)) for column in zip(*(data[row] for row in range(batch)), strict=True))
    models = {}
    for group in groups.values():
        torch.manual_seed(1)
        model = DistributedDataParallel(TinyGPT(64, 2), process_group=group)
        models[group] = model, torch.optim.AdamW(model.parameters(), lr=1e-3)

    def block(group: Any, steps: int = steps) -> float:
        model, optimizer = models[group]
        times = []
        for _ in range(steps):
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(inputs, answers).backward()
            optimizer.step()
            times.append(time.perf_counter() - begin)
        return statistics.median(times) * 1e3

    for group in groups.values():
        block(group, 5)  # DDP chooses its buckets
    turns = _turns(spec, block, groups)
    if spec.rank == 0:
        say(case="ddp", turns=turns)
    say(done=True)


# ---- the transport alone


def abort(spec: Spec) -> None:
    """Print how long an operation outlives an abort, on every rank, many times; each time in a new group."""
    data = torch.ones(spec.words["elements"])
    times = []
    for turn in range(spec.words["turns"]):
        group = dist.new_group(backend=spec.backend)
        ended: list[float] = []
        begun = threading.Event()

        def operate(group: Any = group, ended: list[float] = ended, begun: threading.Event = begun) -> None:
            try:
                while True:
                    begun.set()
                    dist.all_reduce(data, group=group)
            except RuntimeError:
                ended.append(time.perf_counter())

        thread = threading.Thread(target=operate)
        thread.start()
        begun.wait()
        threading.Event().wait(0.001 * (turn % 10))  # so that the abort hits another moment of the operation each time
        begin = time.perf_counter()
        group._get_backend(torch.device("cpu")).abort()
        thread.join()
        times.append(max(0.0, ended[0] - begin) * 1e3)
        dist.barrier()
    say(abort_ms=times)


def rest(spec: Spec) -> None:
    """Print the memory that sessions cost, and the CPU time of the transport's thread while they are idle."""
    groups = [_opened(spec, epoch) for epoch in range(1, WARM + 1)]  # allocates what is needed only once
    before = _anonymous_kb()
    groups += [_opened(spec, epoch) for epoch in range(WARM + 1, WARM + EPOCHS + 1)]
    memory = (_anonymous_kb() - before) / (EPOCHS * (spec.size - 1))
    dist.barrier()
    begin_ns, begin_own = _thread_ns(), time.process_time_ns()
    begin = time.monotonic_ns()
    threading.Event().wait(spec.words["seconds"])  # the idle time is what is measured
    whole = time.monotonic_ns() - begin
    share = 100 * (_thread_ns() - begin_ns) / whole
    say(kb=memory, idle_percent=share, own=100 * (time.process_time_ns() - begin_own) / whole, groups=len(groups))
    dist.barrier()  # the first rank to end would close its sessions


def _opened(spec: Spec, epoch: int) -> Any:
    """Make a group in an epoch of its own and use its sessions: connections and their memory belong to one epoch."""
    store = dist.PrefixStore(f"rest {epoch}", dist.distributed_c10d._get_default_store())
    limit = timedelta(seconds=spec.timeout_s)
    members = range(spec.size)
    inner = rail.make_inner(store, spec.rank, limit, epoch=epoch, identity=f"rest {epoch}", members=members)
    for _ in range(3):
        inner.backend.allreduce([torch.ones(FEW)]).wait()
        inner.backend._allgather_base(torch.empty(MANY * spec.size), torch.ones(MANY)).wait()
    return inner


def _anonymous_kb() -> int:
    """Memory without a file behind it, and without free memory that is only kept for the next use."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def _thread_ns() -> int:
    """The CPU time of the transport's threads."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().startswith(THREAD):
            found += int((task / "schedstat").read_text().split()[0])
    return found


TASKS: dict[str, Callable[[Spec], None]] = {"compare": compare, "train": train, "abort": abort, "rest": rest}
