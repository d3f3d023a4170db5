"""Trains a small GPT for some epochs. After each one it validates, and saves a checkpoint that the script takes up.

Started again with the same --checkpoint, it goes on after the last whole epoch. The lines for taskd are marked with
`# taskd`. A rank that is replaced begins where its predecessor began, though the checkpoint is a newer one by now.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from tiny_gpt import TextWindows, TinyGPT, weights_hash
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import taskd


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--epochs", type=int, default=4)
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
    held_out = TextWindows(2, context=32, count=args.batch * world_size)
    sampler = taskd.StepSampler(data, args.batch, seed=1)  # taskd
    loader = DataLoader(data, batch_sampler=sampler)
    model = DistributedDataParallel(TinyGPT(32, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    session = taskd.session()  # taskd
    session.register(model=model, optimizer=optimizer)  # taskd

    def take_up() -> tuple[int, float]:
        """Load the checkpoint, if there is one. Return the number of finished epochs and the best loss."""
        if not args.checkpoint.exists():
            return 0, float("inf")
        saved = torch.load(args.checkpoint, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        return saved["done"], saved["best"]

    def validate() -> float:
        """Return the loss on samples that nobody trains on: the mean over all ranks."""
        model.eval()
        with torch.no_grad():
            tokens, answers = zip(*(held_out[rank + at * world_size] for at in range(args.batch)), strict=True)
            loss = model(torch.stack(tokens), torch.stack(answers))
        dist.all_reduce(loss)
        model.train()
        return float(loss) / world_size

    done, best = session.between(take_up)  # taskd
    torch.manual_seed(1_000 + rank + done)  # from here on, each rank draws its own dropout

    for epoch in session.epochs(args.epochs, first=done):  # taskd
        sampler.set_epoch(epoch)
        for step in session.steps(loader):  # taskd
            with step as (tokens, answers):  # taskd
                optimizer.zero_grad()
                loss = model(tokens, answers)
                loss.backward()
                optimizer.step()
            if rank == 0 and step.number % 10 == 0:
                print(f"epoch {epoch}, step {step.number}: loss {loss.item():.4f}", flush=True)

        def keep(score: float, epoch: int = epoch, best: float = best) -> None:
            """Save the training as it is after this epoch."""
            if rank == 0:
                state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
                taskd.save({**state, "done": epoch + 1, "best": min(best, score)}, args.checkpoint)  # taskd
                print(f"epoch {epoch}: {score:.4f} in the validation", flush=True)

        best = min(best, session.between(validate, then=keep))  # taskd

    if rank == 0:
        print(f"weights {weights_hash(model.module)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
