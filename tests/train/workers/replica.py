"""Two ranks of a replica test: rank 0 gives state, rank 1 takes it, in several ways. Arguments: RANK SIZE FOLDER."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from taskd.errors import PeerError
from taskd.state import nearby, replica, tree

rank, size, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), size), rank=rank, world_size=size)
SPOILT_BYTES = 4 * 700 * 3
"""Size of the second layer's weight, and of each of its two moments."""


def made(how: str) -> replica.Replica:
    """Return a model and an optimizer with some state. Their tensors have many bytes, few or none."""
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(1500, 700), torch.nn.Linear(700, 3), torch.nn.BatchNorm1d(3))
    model.register_buffer("nothing", torch.empty(0))
    if how == "odd":
        model[0].weight.data = model[0].weight.data.t().contiguous().t()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (rank + 1))
    model(torch.randn(4, 1500)).sum().backward()
    optimizer.step()
    return replica.Replica({"model": model}, {"optimizer": optimizer})


def state(one: replica.Replica) -> str:
    text, small = tree.flatten(one.small())
    found = hashlib.sha256(text)
    for tensor in (*(tensor for _, tensor in one.tensors()), *small):
        found.update(tree.bytes_of(tensor))
    return found.hexdigest()


class Counting(nearby.Memory):
    """Counts the bytes that are read in place."""

    count = 0

    def read(self, place: int, target: int, size: int) -> None:
        super().read(place, target, size)
        Counting.count += size


def spoil(chunk: torch.Tensor, start: int) -> int:
    """Replaces the taker's checksum: it first changes one byte of the tensor that must arrive spoilt."""
    if chunk.numel() == SPOILT_BYTES:
        chunk[17] ^= 1
    return checksum(chunk, start)


def run(how: str, other: int) -> None:
    """Transfer one state and report it. `other` is the pid of a process that is not involved."""
    Counting.count = 0
    # Another process has the giver's pid here, as with a giver in another container.
    nearby.os.getpid = (lambda: other) if how == "stranger" else getpid
    replica._checksum = spoil if how.endswith("spoilt") and rank == 1 else checksum
    Counting.open = classmethod(lambda cls, text: None) if how.startswith("far") else open_memory
    mine = made(how)
    said = {"how": how, "before": state(mine), "error": ""}
    try:
        if rank == 0:
            replica.give(mine, [1], b"extra")
        else:
            assert replica.take(mine, 0) == (b"extra", {})
    except PeerError as error:
        said["error"] = str(error)
    print(json.dumps(said | {"state": state(mine), "read": Counting.count}), flush=True)


replica.Memory = Counting
checksum, getpid, open_memory = replica._checksum, os.getpid, Counting.open
with subprocess.Popen(["sleep", "100"]) as stranger:
    for one in ("near", "far", "stranger", "odd", "near spoilt", "far spoilt"):
        run(one, stranger.pid)
    stranger.kill()
dist.destroy_process_group()
