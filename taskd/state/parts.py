"""Tells which part of the model this rank holds, if ranks hold different parts, and which ranks hold the same part.

A part is a pipeline stage, a slice of layers, or the shards of a replica. A DistributedDataParallel trains it over the
ranks that hold the same part, or the mesh of its tensors says which ranks these are (HSDP). These ranks can replace
each other. The first of them gives the part its number. If no two ranks have the same shards, each has a part of its
own, of which it keeps what a newcomer needs (kept_shards.py). Not seen: parts that a script averages by itself, and
shards that are no DTensors (ZeRO); see coverage.py.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from taskd.state import shards
from taskd.state.replica import Replica

WHOLE = 0
"""Every rank has all of the model."""
UNKNOWN = -1
"""It is not known which ranks hold the same part."""


def part_of(replica: Replica) -> int:
    """Return the number of this rank's part: 1 plus the first rank that holds it."""
    models = replica.parallel()
    spans = {frozenset(dist.get_process_group_ranks(model.process_group)) for model in models}
    if replica.kept:
        return UNKNOWN if spans else 1 + dist.get_rank()
    world = frozenset(range(dist.get_world_size()))
    if (twins := shards.alike(tensor for _, tensor in replica.tensors())) is not None:
        if twins == world and spans <= {world}:
            return WHOLE
        fits = len(twins) > 1 and spans <= {world, twins} and not _is_beside(replica)
        return 1 + min(twins) if fits else UNKNOWN
    if spans <= {world}:
        return WHOLE
    shared = {id(parameter) for model in models for parameter in model.parameters()}
    alone = any(id(one) not in shared for model in replica.models.values() for one in model.parameters())
    left_out = any(model.parameters_to_ignore for model in models)
    if len(spans) > 1 or alone or left_out:
        return UNKNOWN
    ranks = next(iter(spans))
    return 1 + min(ranks) if len(ranks) > 1 else UNKNOWN


def is_only_here(replica: Replica) -> bool:
    """Whether no other rank has all of the shards that this rank has."""
    return dist.is_initialized() and shards.alike(one for _, one in replica.tensors()) == {dist.get_rank()}


def _is_beside(replica: Replica) -> bool:
    """Whether a parameter is trained that is neither a shard nor under a DistributedDataParallel: each rank may have
    another one."""
    reduced = {id(parameter) for model in replica.parallel() for parameter in model.parameters()}
    own = (one for _, one in replica.tensors() if isinstance(one, torch.nn.Parameter) and one.requires_grad)
    return any(not shards.is_shard(one) and id(one) not in reduced for one in own)
