"""Trains while forked children make process groups of their own: the script of test_forked_groups.py.

`python forked_groups.py FOLDER [start]`: with `start`, it calls start_taskd_worker() as a script under torchrun does.
Each child first asks what its parent's groups say to it. Then it makes a group and reduces over it. It ends as any
script does, so that all exit handlers run. A child that hangs is ended by an alarm, and its parent fails.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taskd.errors import UsageError
from tests.patience import PATIENCE_S

FOLDER = Path(sys.argv[1])
OTHERS = "belongs to the process that forked this one"


def refused(call: Callable[[], object]) -> None:
    try:
        call()
    except UsageError as error:
        assert OTHERS in str(error), error
    else:
        raise AssertionError("a group of the parent does something in its child")


def fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        signal.alarm(int(PATIENCE_S / 2))
        body()
        sys.exit(0)
    return pid


def reduce_in_a_group(store: dist.Store | None, rank: int, size: int) -> None:
    """Make this process' own world, with the store of the environment if none is given."""
    where = {} if store is None else {"store": store, "rank": rank, "world_size": size}
    dist.init_process_group("gloo", **where)
    numbers = torch.full((1000,), float(rank + 1))
    for _ in range(3):
        dist.all_reduce(numbers)
        dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    dist.barrier()
    assert numbers[0] == sum(range(1, size + 1)) * size**2, numbers[0]
    assert dist.get_world_size() == size
    dist.destroy_process_group()


def child(pending: dist.Work, name: str, rank: int, size: int) -> None:
    refused(lambda: dist.all_reduce(torch.ones(1)))
    peer = 1 - dist.get_rank()
    refused(lambda: dist.send(torch.ones(1), peer))
    cpu: Any = torch.device("cpu")
    refused(lambda: dist.group.WORLD._start_coalescing(cpu))
    refused(lambda: dist.group.WORLD._end_coalescing(cpu))
    refused(pending.wait)
    assert not pending.is_completed()
    if "start" not in sys.argv:  # the job's own store has a line for each process
        dist.distributed_c10d._get_default_store().set(f"child {os.getpid()}", "")
    dist.destroy_process_group()
    store = dist.FileStore(str(FOLDER / name), size) if name else None
    reduce_in_a_group(store, rank, size)


def main() -> None:
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if "start" in sys.argv:
        from taskd.api.taskd_worker_api import init_taskd_worker, start_taskd_worker

        assert init_taskd_worker(rank, 5000, "pt")
        start_taskd_worker()
    dist.all_reduce(torch.ones(1))
    store = dist.distributed_c10d._get_default_store()
    meeting = store.clone()
    # Another thread is in a wait in the store, so a fork finds the store's lock taken.
    waiting = threading.Thread(target=lambda: store.wait(["all-forked"]), daemon=True)
    waiting.start()
    # Rank 1 comes late to this one, so rank 0 forks in the middle of it.
    own = torch.ones(1000)
    if rank == 0:
        pending = dist.all_reduce(own, async_op=True)
        assert not pending.is_completed()
    else:
        meeting.wait(["forked"])
        pending = dist.all_reduce(own, async_op=True)
        pending.wait()
        own.fill_(1)
        pending = dist.all_reduce(own, async_op=True)
    children = [
        fork(lambda: child(pending, f"alone-{rank}", 0, 1)),
        *(fork(lambda place=place: child(pending, f"pair-{rank}", place, 2)) for place in range(2)),
    ]
    if "start" not in sys.argv:  # torchrun's own store knows nothing of children
        children.append(fork(lambda: child(pending, "", rank, size)))
    if rank == 0:
        meeting.set("forked", "")
        pending.wait()
        pending = dist.all_reduce(own.fill_(1), async_op=True)
    pending.wait()
    for _ in range(20):
        dist.all_reduce(own.fill_(1))
        assert own[0] == size
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * len(children), codes
    dist.barrier()
    meeting.set("all-forked", "")
    waiting.join()
    os.write(1, f"trained {rank}\n".encode())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
