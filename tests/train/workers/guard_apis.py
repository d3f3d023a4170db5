"""Runs every API of torch.distributed that a user may call over guarded groups, and reports each by name.

Arguments: RANK SIZE FOLDER HOW, then the names of the cases to run (all but the compiled ones if none is named). HOW is
"install" (guards from the start), "adopt" (gloo first, then guarded) or "rail" (the rail backend by itself).
"""

from __future__ import annotations

import gc
import json
import os
import sys
import traceback

import cases_collectives
import cases_frameworks
import cases_versus
import torch
import torch.distributed as dist
from cases import CASES, COMPILED, FOLDER, GUARDED, HOW, RANK, SIZE

from taskd import _c10d
from taskd.comm import guard, rail
from tests.patience import PATIENCE

MODULES = (cases_collectives, cases_frameworks, cases_versus)


def main() -> None:
    torch.set_num_threads(1)
    if HOW == "install":
        guard.install(hostname="127.0.0.1")
    if HOW == "rail":
        rail.register()
    dist.init_process_group(
        "cpu:rail" if HOW == "rail" else "gloo",
        init_method=f"file://{FOLDER}/store",
        rank=RANK,
        world_size=SIZE,
        timeout=PATIENCE,
    )
    if HOW == "adopt":
        assert guard.adopt() == [f"0@0-{SIZE - 1}"]
        assert guard.adopt() == []
    everything = {**CASES, **COMPILED}
    unguarded = [name for name in CASES if name not in GUARDED]
    for name in sys.argv[5:] or (unguarded if HOW == "rail" else CASES):
        try:
            everything[name]()
            outcome = "ok"
        except Exception:
            outcome = traceback.format_exc()
        print(json.dumps({"case": name, "outcome": outcome}), flush=True)
        if outcome != "ok":
            sys.exit("a rank that failed leaves, because the others wait for it")
        dist.barrier()
    dist.destroy_process_group()
    gc.collect()
    if HOW == "install" and "TORCH_DISTRIBUTED_DEBUG" not in os.environ:  # torch's debug wrappers keep their groups
        _c10d.wait_for_teardown(0, PATIENCE)
    left = {"groups": guard.groups(), "inner": _c10d.inner_groups_alive() if HOW == "install" else 0}
    print(json.dumps({"case": "the end", "outcome": "ok" if left == {"groups": [], "inner": 0} else str(left)}))


if __name__ == "__main__":
    main()
