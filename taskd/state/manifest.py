"""Describes what a newcomer must set up exactly like the others, so that a difference is named and never trained on.

Every rank describes itself in plain values: the tensors of its models, its optimizers' groups, its process groups, its
threads and determinism flags, and the bucket layout that DDP has settled on. The descriptions are compared by digest
first. They are sent as text only if they differ. Process groups need not be the same everywhere, but each must exist on
all of its members. This module compares and names. It repairs nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Sequence, Set
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.state.replica import Replica
from taskd.state.shards import shard_of
from taskd.state.tree import bytes_of

Manifest = dict[str, Any]
GROUPS = "process groups"
_SAMPLES = 64


def describe(replica: Replica, groups: list[str]) -> Manifest:
    """Return this rank's manifest. Its values are JSON: texts, numbers, lists and dicts of them."""
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
        GROUPS: groups,
        "settings": {
            "torch.get_num_threads()": torch.get_num_threads(),
            "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled(),
            "torch.get_default_dtype()": str(torch.get_default_dtype()),
            "torch.__version__": torch.__version__,
        },
    }


def _groups(optimizer: torch.optim.Optimizer, replica: Replica) -> list[str]:
    """Describe each group in words. The order of its parameters matters, because an optimizer's state follows it."""
    names = {id(tensor): name for name, tensor in replica.tensors()}
    found = []
    for group in optimizer.param_groups:
        order = "\n".join(names[id(parameter)] for parameter in group["params"])
        mark = hashlib.sha256(order.encode()).hexdigest()[:8]
        found.append(f"{len(group['params'])} parameters in order {mark}")
    return found


def digest(manifest: Manifest, *, groups: bool = True) -> int:
    """Return 63 bits that differ if manifests differ, with their process groups or without."""
    if not groups:
        manifest = {part: value for part, value in manifest.items() if part != GROUPS}
    text = json.dumps(manifest, sort_keys=True).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "little") >> 1


def difference(mine: Manifest, theirs: Manifest, rank: int, other: int) -> str:
    """Return the first difference, except in process groups, as a sentence. Empty: there is none."""
    for part in (*mine, *(key for key in theirs if key not in mine)):
        if part == GROUPS:
            continue
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


def groups_apart(manifests: Sequence[Manifest], newcomers: Set[int]) -> dict[int, str]:
    """Return a sentence for each rank that lacks a group of other members, or has a group that other members lack.

    If a newcomer and others differ, the newcomer gets the sentence.
    """
    having: dict[str, set[int]] = {}
    for rank, manifest in enumerate(manifests):
        for identity in manifest.get(GROUPS, ()):
            having.setdefault(identity, set()).add(rank)
    found: dict[int, str] = {}
    for identity, here in having.items():
        lacking = _members(identity) - here
        if not lacking:
            continue
        sentence = f"process group {identity} exists on rank {min(here)} and not on rank {min(lacking)}"
        if here - newcomers and lacking - newcomers:
            apart = lacking - newcomers
        else:
            apart = lacking & newcomers if here - newcomers else here
        for rank in apart:
            found.setdefault(rank, f"the ranks are not set up alike: {sentence}")
    return found


def _members(identity: str) -> set[int]:
    """Return the ranks in a group's identity, for instance 0@0-2,5 (csrc/c10d/guard.cpp)."""
    found: set[int] = set()
    for part in identity.partition("@")[2].split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def _show(value: Any) -> str:
    if value is None:
        return "absent"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."


# ---- what replicas have in common -----------------------------------------------------------------------------------


def contents(replica: Replica) -> int:
    """Return a number that is the same on ranks with the same parameters and optimizers. It covers only a sample of
    each tensor: ranks that train different parts of a model differ in nearly all tensors."""
    found = 0
    for tensor in (tensor for _, tensor in replica.tensors() if isinstance(tensor, torch.nn.Parameter)):
        found = _sample(tensor, found)
    for optimizer in replica.optimizers.values():
        for parameter in (one for group in optimizer.param_groups for one in group["params"]):
            state = optimizer.state.get(parameter, {})
            for name in sorted(name for name, value in state.items() if isinstance(value, torch.Tensor)):
                found = _sample(state[name], zlib.crc32(name.encode(), found))
    return found


def origin(replica: Replica) -> int:
    """Return a number that is the same on ranks that begin with the same parameters and the same settings."""
    found = contents(replica)
    for optimizer in replica.optimizers.values():
        for group in optimizer.param_groups:
            for name in sorted(name for name in group if name != "params"):
                value = group[name]
                if isinstance(value, torch.Tensor):
                    found = _sample(value, zlib.crc32(name.encode(), found))
                else:
                    found = zlib.crc32(f"{name} {_numbers_of(value)}".encode(), found)
    return found


def _numbers_of(value: object) -> str:
    """Return a setting as text, if it is made of plain values. Others look different in each process."""
    if isinstance(value, tuple | list):
        return " ".join(map(_numbers_of, value))
    return repr(value) if isinstance(value, int | float | str) else ""


def _sample(tensor: torch.Tensor, start: int) -> int:
    flat = shard_of(tensor).detach().reshape(-1)
    return zlib.crc32(bytes_of(flat[:: max(1, flat.numel() // _SAMPLES)]), start)


# ---- what DDP learns after the set-up -------------------------------------------------------------------------------


def rebuilt(replica: Replica) -> list[bool]:
    """Return, for each DDP module of this rank, whether it has settled on its buckets (in the second forward)."""
    return [bool(_facts(model).get("has_rebuilt_buckets")) for model in _wrapped(replica)]


def orders(replica: Replica) -> list[int]:
    """Return, for each DDP module, the number of its parameters and their order, with -1 where that is open."""
    found: list[int] = []
    for model in _wrapped(replica):
        settled = [*map(int, re.findall(r"\d+", _facts(model).get("rebuilt_per_bucket_param_indices", "")))]
        count = sum(1 for _ in model.parameters())
        found += [count, *settled, *[-1] * (count - len(settled))]
    return found


def settle_buckets(replica: Replica, wanted: list[bool], others: Sequence[Sequence[int]]) -> None:
    """Let each DDP module that lags behind settle now. If it has no order of its own, it uses the `orders` of the
    others. The caller makes sure that its collectives do not leave this rank."""
    at = 0
    for model, others_have in zip(_wrapped(replica), wanted, strict=True):
        begins, at = at + 1, at + 1 + others[0][at]
        if not others_have:
            continue
        model.reducer._rebuild_buckets()  # does nothing if it was done before
        if _facts(model).get("has_rebuilt_buckets") or model.static_graph:
            continue
        known = next(row[begins:at] for row in others if row[begins] >= 0)
        _follow_order(model, [index for index in known if index >= 0])
        model.reducer._rebuild_buckets()


class _Backward(torch.autograd.Function):
    """A backward that tells DDP about its parameters' gradients in a given order."""

    @staticmethod
    def forward(context: Any, nothing: torch.Tensor, reducer: Any, order: list[int]) -> torch.Tensor:
        context.reducer, context.order = reducer, order
        return nothing.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> Any:
        for index in context.order:
            context.reducer._autograd_hook(index)
        return gradients[0], None, None


def _follow_order(model: DistributedDataParallel, order: list[int]) -> None:
    """Give DDP this order, if the rehearsed step did not use the module and DDP saw no backward to learn it from."""
    parameters, sparse = model._build_params_for_reducer()
    kept = [parameter.grad for parameter in parameters]
    for parameter, is_sparse in zip(parameters, sparse, strict=True):
        parameter.grad = torch.zeros_like(parameter).to_sparse(1) if is_sparse else None
    model.reducer.prepare_for_forward()  # DDP gives no data about a module without a forward
    model.reducer.prepare_for_backward([])
    _Backward.apply(torch.zeros(1, requires_grad=True), model.reducer, order).backward()
    for parameter, gradient in zip(parameters, kept, strict=True):
        parameter.grad = gradient


def buckets(replica: Replica) -> dict[str, Any]:
    """Return which parameters are in each bucket of each DDP module, to be compared once all have settled."""
    return {str(at): _buckets(model) for at, model in enumerate(_wrapped(replica))}


def _buckets(model: DistributedDataParallel) -> Any:
    facts = _facts(model)
    settled = facts.get("rebuilt_per_bucket_param_indices", "")
    if settled or not model.static_graph:
        return settled
    return f"none yet, after {min(2, facts.get('iteration', 0))} steps of a static graph"  # it settles after the second


def _facts(model: DistributedDataParallel) -> dict[str, Any]:
    model.logger.set_runtime_stats_and_log()  # otherwise they are from the last iteration that DDP logged
    facts: dict[str, Any] = model._get_ddp_logging_data()
    return facts


def _wrapped(replica: Replica) -> list[DistributedDataParallel]:
    """Return the DDP modules in an order that is the same on all ranks, however they were found."""
    order = {id(tensor): at for at, (_, tensor) in enumerate(replica.tensors())}
    found: dict[int, DistributedDataParallel] = {}
    for model in replica.parallel():
        found[id(model)] = model
    return sorted(found.values(), key=lambda model: min(order[id(one)] for one in model.parameters()))
