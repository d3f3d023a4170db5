"""What a newcomer must have set up exactly like the others, written down so that a difference is named and never run.

Every rank describes itself in plain values: the tensors of its models, its optimizers' groups, its process groups, its
threads and determinism flags, and the bucket layout that DDP has settled on. The descriptions are compared by digest
first; only when they differ do they travel as text. This module compares and names; it repairs nothing.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.state.replica import Replica

Manifest = dict[str, Any]


def describe(replica: Replica, groups: list[str]) -> Manifest:
    """This rank's manifest. Its values are JSON: texts, numbers, lists and dicts of them."""
    return {
        "model tensors": {
            name: f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
            for name, tensor in replica.tensors()
        },
        "optimizers": {
            name: [type(optimizer).__name__, *_groups(optimizer, replica)]
            for name, optimizer in replica.optimizers.items()
        },
        "DDP modules": [sum(1 for _ in model.parameters()) for model in _wrapped(replica)],
        "other objects": {name: type(item).__name__ for name, item in replica.others.items()},
        "process groups": groups,
        "settings": {
            "torch.get_num_threads()": torch.get_num_threads(),
            "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
            "torch.get_default_dtype()": str(torch.get_default_dtype()),
            "torch.__version__": torch.__version__,
        },
    }


def _groups(optimizer: torch.optim.Optimizer, replica: Replica) -> list[str]:
    """Each group in words. The order of its parameters counts: an optimizer's state is kept by it."""
    names = {id(tensor): name for name, tensor in replica.tensors()}
    found = []
    for group in optimizer.param_groups:
        order = "\n".join(names[id(parameter)] for parameter in group["params"])
        mark = hashlib.sha256(order.encode()).hexdigest()[:8]
        found.append(f"{len(group['params'])} parameters in order {mark}")
    return found


def digest(manifest: Manifest) -> int:
    """63 bits that differ when manifests differ."""
    text = json.dumps(manifest, sort_keys=True).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def difference(mine: Manifest, theirs: Manifest, rank: int, other: int) -> str:
    """The first difference as a sentence; empty when there is none."""
    for part in (*mine, *(key for key in theirs if key not in mine)):
        here, there = mine.get(part), theirs.get(part)
        if here == there:
            continue
        if isinstance(here, dict) and isinstance(there, dict):
            for name in (*here, *(key for key in there if key not in here)):
                if here.get(name) != there.get(name):
                    values = f"{_show(here.get(name))} on rank {rank} and {_show(there.get(name))} on rank {other}"
                    return f"the ranks are not set up alike: {part}, {name}: {values}"
        return (
            f"the ranks are not set up alike: {part}: {_show(here)} on rank {rank} and {_show(there)} on rank {other}"
        )
    return ""


def _show(value: Any) -> str:
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


# ---- what DDP learns after the set-up -------------------------------------------------------------------------------


def rebuilt(replica: Replica) -> list[bool]:
    """For each DDP module of this rank, whether it has settled on its buckets (it does in the second forward)."""
    return [bool(_facts(model).get("has_rebuilt_buckets")) for model in _wrapped(replica)]


def settle_buckets(replica: Replica, wanted: list[bool]) -> None:
    """Let each DDP module that lags behind settle now; the caller keeps its collectives from leaving this rank."""
    for model, others_have in zip(_wrapped(replica), wanted, strict=True):
        if others_have:
            model.reducer._rebuild_buckets()  # does nothing where it was done before


def buckets(replica: Replica) -> dict[str, Any]:
    """Which parameters each bucket of each DDP module holds, to be compared once all have settled."""
    return {
        str(at): _facts(model).get("rebuilt_per_bucket_param_indices", "") for at, model in enumerate(_wrapped(replica))
    }


def _facts(model: DistributedDataParallel) -> dict[str, Any]:
    model.logger.set_runtime_stats_and_log()  # else they are those of the last iteration that DDP chose to log
    facts: dict[str, Any] = model._get_ddp_logging_data()
    return facts


def _wrapped(replica: Replica) -> list[DistributedDataParallel]:
    """In an order that is the same on all ranks, however they were found."""
    order = {id(tensor): at for at, (_, tensor) in enumerate(replica.tensors())}
    found: dict[int, DistributedDataParallel] = {}
    for model in (*replica.models.values(), *replica.wrappers):
        if isinstance(model, DistributedDataParallel):
            found[id(model)] = model
    return sorted(found.values(), key=lambda model: min(order[id(one)] for one in model.parameters()))
