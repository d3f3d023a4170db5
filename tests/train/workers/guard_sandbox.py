"""A set-up that communicates in every way. Ranks record it, or a newcomer plays it back all alone.

Arguments: RANK SIZE FOLDER HOW [CHANGE]. HOW "record": all ranks run it and record. HOW "replay": only this process
runs, against its own record. CHANGE names what it does differently. The report says what that led to.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import setup_record
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from taskd import _c10d
from taskd.comm import guard
from tests.patience import PATIENCE

RANK, SIZE, FOLDER, HOW = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
CHANGE = sys.argv[5] if len(sys.argv) > 5 else ""
FILE = FOLDER / f"record{RANK}"
control = _c10d.control


def set_up() -> dict[str, Any]:
    """Do the set-up. Returns what this rank has seen, which must be the same when it is played back."""
    seen: dict[str, Any] = {}
    everybody: list[Any] = [None] * SIZE
    dist.all_gather_object(everybody, {"rank": RANK, "pid": os.getpid()})
    seen["everybody"] = everybody
    told: list[Any] = [{"seed": 17}] if RANK == 0 else [None]
    dist.broadcast_object_list(told, 0)
    seen["told"] = told
    mesh = init_device_mesh("cpu", (1, SIZE), mesh_dim_names=("replicas", "shards"))
    shards = mesh["shards"].get_group()
    pair = dist.new_group([0, SIZE - 1])
    small = torch.full((9 if CHANGE == "shape" else 8,), float(RANK), dtype=torch.float64)
    if CHANGE == "kind":
        dist.broadcast(small, 0, group=shards)
    elif CHANGE != "group":
        dist.all_reduce(small, group=shards)
    if RANK in (0, SIZE - 1):
        dist.all_reduce(small, group=pair)
    if CHANGE == "more":
        for _ in range(3):
            dist.all_reduce(small, group=pair)
    seen["small"] = small.tolist()
    box = torch.zeros(3)
    if RANK == 0:
        for tag, value in ((1, 5.0), (2, 6.0), (1, 7.0)):
            dist.send(torch.full((3,), value), SIZE - 1, tag=tag)
    if RANK == SIZE - 1:
        boxes = [torch.zeros(3) for _ in range(3)]
        works = [dist.irecv(one, 0, tag=tag) for one, tag in zip(boxes, (2, 1, 1), strict=True)]
        for work in works:
            work.wait()
        seen["boxes"] = [int(one[0]) for one in boxes]
    if RANK == SIZE - 1:
        dist.send(torch.full((3,), 9.0), 0)
    if RANK == 0:
        seen["from"] = dist.recv(box)
    gathered = [torch.zeros(2) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(torch.full((2,), float(RANK)), gathered)
    seen["gathered"] = [one.tolist() for one in gathered or []]
    large = torch.full((300_000,), float(RANK))
    dist.broadcast(large, 0)  # too large for the record: a newcomer keeps its own
    dist.barrier()
    dist.monitored_barrier()
    torch.manual_seed(RANK)
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    seen["weights"] = model.module.weight.sum().item()
    seen["large"] = large[0].item()
    return {**seen, "groups": guard.groups()}


def main() -> None:
    torch.set_num_threads(1)
    fd = os.open(FILE, os.O_RDWR | os.O_CREAT)
    if HOW == "replay":
        try:
            control.sandbox(FILE.read_bytes() if CHANGE == "bytes" else fd)
        except ValueError as refused:
            print(json.dumps({"error": type(refused).__name__, "text": str(refused)}))
            return
        assert control.mode == _c10d.Mode.SANDBOX
    else:
        control.start_record(fd)
    guard.install(hostname="127.0.0.1")
    store: Any = dist.HashStore() if HOW == "replay" else dist.FileStore(str(FOLDER / "store"), SIZE)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=SIZE, timeout=PATIENCE)
    try:
        seen = set_up()
    except BaseException as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}))
        return
    if HOW == "replay":
        seen["left"] = control.replay_left()
        control.rehearsing = True
        rehearsed = torch.full((3,), 4.0)
        dist.all_reduce(rehearsed)
        assert torch.equal(rehearsed, torch.full((3,), 4.0))
        torch.use_deterministic_algorithms(True)  # fills unwritten memory with large numbers
        objects = [RANK]
        dist.broadcast_object_list(objects, (RANK + 1) % SIZE)
        assert objects == [None]
        everyone = [None] * SIZE
        dist.all_gather_object(everyone, RANK)
        control.rehearsing = False
    else:
        control.stop_record()
        dist.all_reduce(torch.ones(3))  # the first step is not recorded
        written = setup_record.read(fd)
        seen["entries"] = len(written.entries)
        assert written.state is setup_record.State.CLOSED and not written.torn
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
