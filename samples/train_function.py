"""Trains a small GPT in a loop that stays as it is: only the function of one train step is decorated.

This suits loops that belong to somebody else, and loops over streams of unknown length. A call returns None if its
update came from another rank, or if it was made before this rank was replaced. The lines for taskd are marked with
`# taskd`.
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from tiny_gpt import TextWindows, TinyGPT, weights_hash
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import taskd


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=50, help="steps of one epoch")
    parser.add_argument("--batch", type=int, default=8)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    data = TextWindows(1, context=32, count=args.steps * args.batch * world_size)
    sampler: DistributedSampler[tuple[torch.Tensor, torch.Tensor]] = DistributedSampler(data, seed=1)
    own = torch.Generator()  # taskd: so opening the loader between two steps draws nothing that steps draw from
    loader = DataLoader(data, batch_size=args.batch, sampler=sampler, generator=own)
    model = DistributedDataParallel(TinyGPT(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1_000 + rank)  # from here on, each rank draws its own dropout
    taskd.session().register(model=model, optimizer=optimizer)  # taskd

    @taskd.resilient  # taskd
    def train(tokens: torch.Tensor, answers: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(tokens, answers)
        loss.backward()
        optimizer.step()
        return loss.item()

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for number, (tokens, answers) in enumerate(loader):
            loss = train(tokens, answers)
            if rank == 0 and number % 10 == 0 and loss is not None:
                print(f"step {epoch * args.steps + number}: loss {loss:.4f}", flush=True)

    if rank == 0:
        print(f"weights {weights_hash(model.module)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
