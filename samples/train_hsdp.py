"""Trains a small GPT with FSDP2 on a mesh of replicas and shards (HSDP), on four ranks or another even number.

A rank that dies has the only copy of its shard in its own replica, but another replica has the same shard. The rank
that replaces it takes the shard from there, bit for bit. On a mesh without replicas each rank keeps its own shards
in memory of its host, and the new rank takes them from there. The lines for
taskd are marked with `# taskd`.
"""

from __future__ import annotations

import argparse
import hashlib

import torch
import torch.distributed as dist
from tiny_gpt import Block, TextWindows, TinyGPT
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

import taskd


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=8)
    return parser.parse_args()


def whole_hash(model: torch.nn.Module) -> str:
    """Return the hash of all parameters. All ranks must call it, because the shards are gathered."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        whole = parameter.full_tensor() if isinstance(parameter, DTensor) else parameter
        digest.update(whole.detach().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    args = arguments()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("replicas", "shards"))

    data = TextWindows(1, context=32, count=args.steps * args.batch * world_size)
    loader = DataLoader(data, batch_sampler=taskd.StepSampler(data, args.batch, seed=1))  # taskd
    model = TinyGPT(32, 2)
    for block in model.modules():
        if isinstance(block, Block):
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1_000 + rank)  # from here on, each rank draws its own dropout

    session = taskd.session()  # taskd
    session.register(model=model, optimizer=optimizer)  # taskd
    for step in session.steps(loader):  # taskd
        with step as (tokens, answers):  # taskd
            optimizer.zero_grad()
            loss = model(tokens, answers)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if rank == 0 and step.number % 10 == 0:
            print(f"step {step.number}", flush=True)

    found = whole_hash(model)
    if rank == 0:
        print(f"weights {found}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
