"""A training in which one bit flips once, on one rank: in the item that --what names, when step --at begins.

It trains until the flip is found and all start over. If the bit was flipped before this start, or if --what is "", it
trains STEPS steps and prints its weights. So no test waits for a number of steps. With --kill, rank 1 first dies in
that step, once.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import taskd
from tests.trust.scene import BATCH, Net, Noise, loss_of, say

STEPS = 12
ENDLESS = 1_000_000


def flip(
    what: str, model: nn.Module, optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.StepLR
) -> None:
    """Change one bit, or one number. A lower bit might be rounded away by the next steps."""
    weight = model.first.weight
    if what == "parameter":
        weight.detach().view(torch.int32)[3, 2] ^= 1 << 12
    elif what == "moment":
        optimizer.state[weight]["exp_avg_sq"].view(torch.int32)[1, 1] ^= 1 << 20
    elif what == "lr":
        optimizer.param_groups[0]["lr"] *= 1.0000001
    elif what == "scheduler":
        scheduler.last_epoch += 1
    else:
        raise ValueError(what)


def die_once(mark: Path) -> None:
    """Kill this process. A process that finds the mark goes on."""
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--what", required=True)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--at", type=int, required=True)
    parser.add_argument("--kill", type=int, default=-1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    rank, mark = dist.get_rank(), args.folder / "flipped"
    say(f"begin {rank}")
    endless = bool(args.what) and not mark.exists()
    dist.barrier()  # all ranks have looked for the mark
    net = Net()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 300)
    session = taskd.session()
    session.register(model=model, optimizer=optimizer, scheduler=scheduler)
    torch.manual_seed(100 + rank)
    loader = DataLoader(Noise((ENDLESS if endless else STEPS) * BATCH), batch_size=BATCH, generator=torch.Generator())
    for step in session.steps(loader):
        with step as batch:
            if endless and (rank, step.number) == (1, args.kill) and not step.rehearsal:
                die_once(args.folder / "dead")
            if step.rehearsal:
                pass
            elif endless and step.number == args.at and rank == args.rank and not mark.exists():
                mark.touch()
                flip(args.what, net, optimizer, scheduler)
            optimizer.zero_grad()
            loss_of(model, batch["x"]).backward()
            optimizer.step()
            scheduler.step()
    found = torch.cat([one.detach().double().flatten() for one in net.parameters()])
    say(f"weights {rank} {hashlib.sha256(found.numpy().tobytes()).hexdigest()}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
