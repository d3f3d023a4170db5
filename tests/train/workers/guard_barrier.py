"""Two ranks meet or miss each other in monitored barriers, and rebuild for a new, a repeated and a past epoch.

Arguments: RANK SIZE FOLDER. Prints the error texts as one line of JSON. What must hold is asserted here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import taskd
from taskd import _c10d
from taskd.comm import guard
from tests.patience import PATIENCE

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
control = _c10d.control


def said(kind: type[BaseException], call: Callable[[], Any]) -> str:
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} was raised")


def works() -> bool:
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    return int(tensor[0]) == SIZE


def main() -> None:
    found = {"ungrouped": said(taskd.UsageError, taskd.monitored_barrier)}
    guard.install(hostname="127.0.0.1")
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=SIZE, timeout=PATIENCE)
    for _ in range(3):
        taskd.monitored_barrier()
    if RANK == 0:
        alone = timedelta(seconds=1)
        found["missing"] = said(taskd.BackendError, lambda: taskd.monitored_barrier(timeout=alone))
    dist.barrier()
    if RANK == 1:
        taskd.monitored_barrier()  # rank 1 is late and gets no error, because rank 0 came
    taskd.monitored_barrier()
    store = guard.meeting_store()
    found["back"] = said(ValueError, lambda: guard.rebuild(-1, store))
    assert works()
    control.drain(1)
    guard.rebuild(1, dist.PrefixStore("meeting", store))
    found["twice"] = said(ValueError, lambda: guard.rebuild(1, store))
    control.resume(1)
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    found["two guards"] = said(ValueError, lambda: _c10d.Guard(RANK, SIZE, backend, [0, 1], 7))
    taskd.monitored_barrier()
    assert works()
    print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
