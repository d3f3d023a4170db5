"""One rank of `taskd bench reconfigure`: RANK SIZE FOLDER ROUNDS WARM_UP; prints its results as one JSON line.

The last rank has no groups. It serves the store in which the others meet, as an agent does in a job. So the data that a
store keeps do not look like a leak (a file store keeps everything that it ever held, in every process). In every round
operations are in flight when the step is given up. All ranks give it up, rebuild, and do another operation, which must
give the right result. The use of memory, descriptors and threads is noted after WARM_UP rounds and at the end, each
time after every old inner group is gone and idle threads have ended. It judges nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from taskd import _c10d
from taskd.comm import guard
from taskd.errors import StepAbandoned

TIMEOUT = timedelta(seconds=60)
ELEMENTS = 200_000
control = _c10d.control


def usage() -> dict[str, int]:
    """Return the use of memory, descriptors and threads, once nothing of old groups is left."""
    _c10d.wait_for_teardown(1, TIMEOUT)
    deadline = time.monotonic() + 20
    while _c10d.pool_threads() > 1 and time.monotonic() < deadline:  # one watches for timeouts, and stays
        time.sleep(0.1)  # an idle thread ends after a while, and no event reports it
    # The memory that free() keeps for later depends on which thread freed it, and is no leak.
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "fds": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
    }


def give_up(epoch: int, rank: int, size: int) -> float:
    """Milliseconds from the order to the end of the last operation. One rank has begun none, so none can complete."""
    works = []
    if rank != epoch % size:
        works = [dist.all_reduce(torch.ones(ELEMENTS), async_op=True) for _ in range(4)]
    begin = time.perf_counter()
    control.drain(epoch)
    guard.quiesce(TIMEOUT)
    took = time.perf_counter() - begin
    for work in works:
        try:
            work.wait()
        except StepAbandoned:
            continue
        raise AssertionError("an operation of a step that was given up says that it is done")
    return took * 1e3


def meet(store: dist.Store, name: str, rank: int, size: int) -> None:
    """Wait for all ranks. Else a rank that gives up the next step breaks operations that others have not finished: here
    no manager orders a repair."""
    store.set(f"{name}/{rank}", "")
    store.wait([f"{name}/{other}" for other in range(size)], TIMEOUT)


def serve(meeting: dist.Store, ranks: int) -> None:
    """Serve the store of the other ranks until all of them are done."""
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    meeting.set("port", str(store.port))
    meeting.wait([f"done/{rank}" for rank in range(ranks)], timedelta(hours=1))
    print(json.dumps({}), flush=True)


def main(rank: int, size: int, folder: str, rounds: int, warm_up: int) -> None:
    torch.set_num_threads(1)
    meeting = dist.FileStore(f"{folder}/meeting", size)
    size -= 1
    if rank == size:
        serve(meeting, size)
        return
    guard.install(hostname="127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size, timeout=TIMEOUT)
    control.attached = True
    store = dist.TCPStore("127.0.0.1", int(meeting.get("port")), None, False, timeout=TIMEOUT)
    park_ms, rebuild_ms, before = [], [], usage()
    probe = torch.ones(8)
    for epoch in range(1, rounds + 1):
        park_ms.append(give_up(epoch, rank, size))
        begin = time.perf_counter()
        guard.rebuild(epoch, dist.PrefixStore("meeting", store))
        rebuild_ms.append((time.perf_counter() - begin) * 1e3)
        control.take_events()
        control.resume(epoch)
        dist.all_reduce(probe.fill_(1))
        assert probe[0] == size
        meet(store, f"over/{epoch}", rank, size)
        if epoch == warm_up:
            before = usage()
            meet(store, "counted", rank, size)
    after = usage()
    print(json.dumps({"park_ms": park_ms, "rebuild_ms": rebuild_ms, "before": before, "after": after}), flush=True)
    dist.barrier()
    control.attached = False
    dist.destroy_process_group()
    meeting.set(f"done/{rank}", "")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
