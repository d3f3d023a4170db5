"""One rank of a store test: `python store.py RANK SIZE FOLDER NAME CASE`. Groups over the agent's store."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

from taskd import _c10d
from taskd.comm import guard
from tests.patience import PATIENCE


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def total(group: object, value: int) -> int:
    tensor = torch.tensor([value])
    dist.all_reduce(tensor, group=group)  # type: ignore[arg-type]
    return int(tensor.item())


def groups(store: dist.Store, rank: int, size: int) -> None:
    """Use the default group and a group of all ranks. Then rank 0 dies, and the survivors make a group."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=PATIENCE)
    say(sum=total(None, rank), again=total(dist.new_group(), 10 * rank))
    objects: list[object] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": other} for other in range(size)]
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    survivors = list(range(1, size))
    store.wait([f"dead/{other}" for other in [0]], PATIENCE)
    group = dist.new_group(survivors, use_local_synchronization=True)
    say(survivors=total(group, rank), keys=store.num_keys() > 0)
    os._exit(0)  # without destroying the default group, which has lost a member


def rebuild(store: dist.Store, rank: int, size: int) -> None:
    """Rebuild a guarded group under a new epoch. Rank 0 never comes to epoch 2, so that meeting ends with its epoch."""
    guard.install()
    dist.init_process_group("gloo", store=dist.PrefixStore("generation0", store), rank=rank, world_size=size)
    first = total(None, rank)
    _c10d.control.park(1)
    guard.rebuild(1, dist.PrefixStore("generation0", store), within=PATIENCE)
    _c10d.control.resume(1)
    say(sums=[first, total(None, rank)])
    if rank == 0:
        store.wait(["end"], PATIENCE)
        os._exit(0)  # it never comes to epoch 2
    _c10d.control.park(2)
    say(meeting=2)
    begin = time.monotonic()
    try:
        guard.rebuild(2, dist.PrefixStore("generation0", store.clone()), within=PATIENCE)
    except Exception as error:
        say(seconds=time.monotonic() - begin, why=str(error))
    os._exit(0)


def main() -> None:
    rank, size, name, case = int(sys.argv[1]), int(sys.argv[2]), sys.argv[4], sys.argv[5]
    store = _c10d.AgentStore(b"\0" + name.encode(), PATIENCE)
    {"groups": groups, "rebuild": rebuild}[case](store, rank, size)


if __name__ == "__main__":
    main()
