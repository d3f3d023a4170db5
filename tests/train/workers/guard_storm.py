"""Drains, rebuilds and resumes at random moments in a storm of operations, and checks every single outcome.

Arguments: RANK SIZE FOLDER HOW ROUNDS SEED. HOW is "storm" (another thread drains all kinds of operations while they
are awaited) or "leak" (one operation is in flight at each of many reconfigurations, and leaked resources are counted).
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taskd import _c10d
from taskd.comm import guard
from taskd.errors import StepAbandoned
from tests.patience import PATIENCE, PATIENCE_S

RANK, SIZE, FOLDER, HOW = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
ROUNDS, SEED = int(sys.argv[5]), int(sys.argv[6])
INNER = os.environ["TASKD_INNER"]
control = _c10d.control
WATCHES = 1
"""The pool has one thread that watches time limits. It may outlive the operations that had these limits."""


class Operation:
    """One operation under way. `after` is what its tensor must hold if it is done, `before` if it was given up."""

    def __init__(self, kind: str, value: int, length: int, group: Any) -> None:
        self.before: torch.Tensor | None = torch.full((length,), float(value + RANK))
        self.tensor = self.before.clone()
        total = float(sum(value + rank for rank in range(SIZE)))
        self.after = torch.full((length,), total)
        if kind == "all_reduce":
            self.work = dist.all_reduce(self.tensor, group=group, async_op=True)
        elif kind == "reduce_scatter":
            whole, self.before = self.tensor.repeat(SIZE), torch.zeros(length)
            self.work = dist.reduce_scatter_tensor(self.tensor, whole, group=group, async_op=True)
        elif kind == "all_gather":
            self.after = torch.cat([torch.full((length,), float(value + rank)) for rank in range(SIZE)])
            mine, self.tensor, self.before = self.tensor, torch.full_like(self.after, 9.0), torch.zeros_like(self.after)
            self.work = dist.all_gather_into_tensor(self.tensor, mine, group=group, async_op=True)
        elif kind == "send":
            self.after = self.before
            self.work = dist.isend(self.tensor, (RANK + 1) % SIZE, group=group)
        else:
            sender = (RANK - 1) % SIZE
            self.after, self.before = torch.full((length,), float(value + sender)), torch.zeros(length)
            self.work = dist.irecv(self.tensor, sender, group=group)

    def check(self) -> str:
        try:
            self.work.wait()
        except StepAbandoned:
            # The operation may also be done, if the step was given up just before the wait.
            assert self.work.get_future().done()
            # Rails work in the caller's memory. What a step that is given up leaves there is restored by the session.
            whole = torch.equal(self.tensor, self.before) or torch.equal(self.tensor, self.after)
            assert whole or INNER == "rail", self.tensor
            return "abandoned"
        assert torch.equal(self.tensor, self.after), (self.tensor, self.after)
        return "done"


def heal(epoch: int, store: Any) -> None:
    control.drain(epoch)
    guard.rebuild(epoch, store, within=PATIENCE)


def heal_after(moment_s: float, epoch: int, store: Any) -> None:
    time.sleep(moment_s)  # lasts: the test is about this moment
    heal(epoch, store)


def begin(chance: random.Random, groups: list[Any]) -> list[Operation]:
    """Begin random operations, the same on every rank, since `chance` is the same. Each send has its receive."""
    operations: list[Operation] = []
    for number in range(chance.randrange(1, 30)):
        kind = chance.choice(["all_reduce", "all_reduce", "reduce_scatter", "all_gather", "send"])
        length, group = chance.choice([1, 100, 30_000, 300_000]), chance.choice(groups)
        try:
            operations.append(Operation(kind, number, length, group))
            if kind == "send":
                operations.append(Operation("recv", number, length, group))
        except StepAbandoned:
            break
    return operations


def storm(store: Any, groups: list[Any]) -> dict[str, int]:
    chance = random.Random(SEED)
    own_chance = random.Random(SEED * 100 + RANK)
    counts = {"done": 0, "abandoned": 0}
    pace_s = 0.05  # adapts, so that neither outcome becomes rare on a quick or a busy machine
    for epoch in range(1, ROUNDS + 1):
        healer = threading.Thread(target=heal_after, args=(own_chance.random() * pace_s, epoch, store))
        healer.start()
        for operation in begin(chance, groups):
            counts[operation.check()] += 1
        pace_s = min(max(pace_s * (1.25 if counts["abandoned"] > counts["done"] else 0.8), 0.002), 2.0)
        chance = random.Random(SEED + epoch)  # anew: a rank that was drained early has drawn fewer numbers
        healer.join()
        assert control.epoch == epoch
        control.resume(epoch)
        probe = torch.ones(5)
        for group in groups:
            dist.all_reduce(probe, group=group)
        assert torch.equal(probe, torch.full((5,), float(SIZE ** len(groups)))), probe
    return counts


def usage() -> dict[str, int]:
    # What free() keeps for later depends on the threads that freed it. That is no leak, so it is trimmed.
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    tasks = os.listdir("/proc/self/task")
    return {"fds": len(os.listdir("/proc/self/fd")), "threads": len(tasks), "rss_mib": pages * 4096 >> 20}


def settled(groups: list[Any]) -> dict[str, int]:
    """Return what is in use, once every old inner group is gone and idle threads have ended."""
    assert _c10d.wait_for_teardown(len(groups), PATIENCE), _c10d.inner_groups_alive()
    deadline = time.monotonic() + PATIENCE_S
    while _c10d.pool_threads() > WATCHES and time.monotonic() < deadline:
        time.sleep(0.1)
    return usage()


def leak(store: Any, groups: list[Any]) -> dict[str, Any]:
    before: dict[str, int] = {}
    for epoch in range(1, ROUNDS + 1):
        if epoch == ROUNDS // 5:
            before = settled(groups)
        operations = [Operation("all_reduce", 1, 300_000, group) for group in groups if (epoch + RANK) % SIZE]
        heal(epoch, store)
        for operation in operations:
            operation.check()
        control.resume(epoch)
    return {"before": before, "after": settled(groups)}


def main() -> None:
    torch.set_num_threads(1)
    guard.install(hostname="127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=SIZE, timeout=PATIENCE)
    groups = [dist.group.WORLD, dist.new_group(list(range(SIZE)))]
    control.attached = True
    store = dist.PrefixStore("meeting", dist.FileStore(str(FOLDER / "meeting"), SIZE))
    print(json.dumps(storm(store, groups) if HOW == "storm" else leak(store, groups)), flush=True)
    dist.barrier()
    control.attached = False
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
