"""Which part of the model this rank holds, where ranks hold different ones, and which ranks hold the same.

Pipeline stages, or slices of layers, each trained by a DistributedDataParallel over the ranks that have the same: those
are the ranks that can replace each other. The part is called by the first of them. Not seen: parts that a script
averages by itself, and shards of other kinds (FSDP, ZeRO, DTensor); coverage.py says what those are.
"""

from __future__ import annotations

import torch.distributed as dist

from taskd.state.replica import Replica

WHOLE = 0
"""Every rank has all of the model."""
UNKNOWN = -1
"""Nobody knows who has the same."""


def part_of(replica: Replica) -> int:
    """Its number: 1 and the first rank that has it."""
    models = replica.parallel()
    spans = {frozenset(dist.get_process_group_ranks(model.process_group)) for model in models}
    if spans <= {frozenset(range(dist.get_world_size()))}:
        return WHOLE
    shared = {id(parameter) for model in models for parameter in model.parameters()}
    alone = any(id(one) not in shared for model in replica.models.values() for one in model.parameters())
    left_out = any(model.parameters_to_ignore for model in models)
    if len(spans) > 1 or alone or left_out:
        return UNKNOWN
    ranks = next(iter(spans))
    return 1 + min(ranks) if len(ranks) > 1 else UNKNOWN
