"""Trains a small GPT with DistributedDataParallel and prints the hash of its final weights.

The training is deterministic for a seed: two runs print the same hash, even if ranks were killed in one of them. The
lines that a user adds for taskd are marked with `# taskd` below: the sampler, and the four lines of the session. If
`taskd-run` starts this script, the job heals. If plain torchrun starts it, the training is the same. A manager can
watch such a job, too, after two calls of the drop-in API: taskd.api's init_taskd_worker() and start_taskd_worker().
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from tiny_gpt import TextWindows, TinyGPT, weights_hash
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import taskd


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200, help="steps of one epoch")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1, help="pieces that each batch is split into")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--log-every", type=int, default=50)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    data = TextWindows(args.seed, context=64, count=args.steps * args.batch * world_size)
    sampler = taskd.StepSampler(data, args.batch, seed=args.seed)  # taskd
    loader = DataLoader(data, batch_sampler=sampler, num_workers=args.loader_workers)
    model = DistributedDataParallel(TinyGPT(args.width, args.layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps * args.epochs)
    torch.manual_seed(args.seed * 1_000 + rank)  # from here on, each rank draws its own dropout

    session = taskd.session()  # taskd
    session.register(model=model, optimizer=optimizer, scheduler=scheduler)  # taskd
    for step in session.steps(loader, epochs=args.epochs):  # taskd
        with step as (tokens, answers):  # taskd
            optimizer.zero_grad()
            pieces = list(zip(tokens.chunk(args.accumulate), answers.chunk(args.accumulate), strict=True))
            for piece, (inputs, wanted) in enumerate(pieces):
                model.require_backward_grad_sync = piece == len(pieces) - 1  # reduce gradients once per step
                loss = model(inputs, wanted) / len(pieces)
                loss.backward()
            optimizer.step()
            scheduler.step()
            if rank == 0 and (step.number + 1) % args.log_every == 0:
                print(f"step {step.number + 1}: loss {loss.item() * len(pieces):.4f}", flush=True)

    if rank == 0:
        print(f"weights {weights_hash(model.module)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
