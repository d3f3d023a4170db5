"""One rank ends as soon as its last operation is over. The others begin their operations when it is gone.

Arguments: RANK SIZE FOLDER HOW. Rank 0 sends its data, and its interpreter ends without destroying a group. With HOW
"vanish" it ends by os._exit: its transport says no farewell. The others wait for the end of its process, which they are
then told as if their node had seen it. Then they report what they received and which errors they got.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from taskd import _c10d
from taskd.comm import rail, rail_engine
from tests.patience import PATIENCE, PATIENCE_S

RANK, SIZE, FOLDER, HOW = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]


def main() -> None:
    torch.set_num_threads(1)
    rail.register()
    dist.init_process_group(
        "cpu:rail", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=SIZE, timeout=PATIENCE
    )
    pids: list[int] = [0] * SIZE
    dist.all_gather_object(pids, os.getpid())
    told = torch.full((1000,), float(RANK))
    if RANK == 0:
        dist.broadcast(told, 0)
        for rank in range(1, SIZE):
            dist.send(torch.full((3,), float(rank)), rank)
        if HOW == "vanish":
            os._exit(0)
        return
    with contextlib.suppress(ProcessLookupError):  # it has ended already
        gone = select.poll()
        gone.register(os.pidfd_open(pids[0]), select.POLLIN)
        assert gone.poll(PATIENCE_S * 1000), "rank 0 does not end"
    if HOW == "vanish":
        rail_engine.ranks_have_ended(_c10d.control.epoch, [0])
    dist.broadcast(told, 0)
    message = torch.zeros(3)
    sender = dist.recv(message)
    said = {"told": told.unique().tolist(), "message": message.tolist(), "sender": sender}
    for name, call in {"all_reduce": lambda: dist.all_reduce(told), "recv": lambda: dist.recv(message, 0)}.items():
        try:
            call()
        except RuntimeError as error:
            said[name] = str(error)
    print(json.dumps(said), flush=True)
    # For a late rank, only rank 0 may be gone. So wait for all others.
    (FOLDER / f"said-{RANK}").touch()
    while len(list(FOLDER.glob("said-*"))) < SIZE - 1:
        time.sleep(0.01)


if __name__ == "__main__":
    main()
