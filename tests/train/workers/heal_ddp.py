"""A small training with all that a heal must restore: BatchNorm buffers of each rank, dropout, two optimizers, a
schedule, gradient accumulation, DataLoader workers. A rank kills itself at the places that are given, once at each.

Arguments: --kills RANK:STEP:PLACE[:HOW],... in the order in which each rank is to die. PLACE is setup, start, forward,
backward, optimizer, applied, end, between or after. HOW is kill, term, exit, leave (with exit code 0), raise, memory
(it takes more memory than the cgroup MEMORY_GROUP has, and the system kills it) or node (its launcher is killed, and so
its whole node). Prints "weights RANK HASH" and writes the sample ids of each step to FOLDER/ids.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import signal
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import taskd
from taskd._c10d import Mode, control

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--steps", type=int, default=30)
parser.add_argument("--kills", default="")
parser.add_argument("--loader-workers", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument(
    "--late", default="", help="RANK:STEP: has its gradients and makes no update until the step is given up"
)
parser.add_argument("--long", default="", help="RANK:STEP:SECONDS,...: so long is this forward, the first time")
parser.add_argument("--hold", default="", help="RANK:STEP: this forward waits until the file FOLDER/go is there")
parser.add_argument("--hold-again", default="", help="the same, until FOLDER/go-again is there")
parser.add_argument("--local-bytes", type=int, default=0, help="of state of its own that each rank changes")
parser.add_argument("--plain", action="store_true", help="a script that knows nothing of sessions")
args = parser.parse_args()
kills = [tuple(spec.split(":")) for spec in args.kills.split(",") if spec]
BATCH = 4


class Noise(Dataset[tuple[int, torch.Tensor]]):
    """Samples drawn from their index. Without loader processes, the rank's own generator adds noise."""

    def __len__(self) -> int:
        return args.steps * BATCH * dist.get_world_size()

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        own = torch.Generator().manual_seed(index)
        return index, torch.randn(16, generator=own) + (0 if args.loader_workers else 0.01 * torch.rand(16))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2))
        self.second = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


def say(line: str) -> None:
    """Write the line with one write. An unbuffered print() writes the newline separately."""
    os.write(1, f"{line}\n".encode())


def die(rank: int, step: int, place: str) -> None:
    """Die if this is the place of this rank's next death."""
    own = [spec for spec in kills if int(spec[0]) == rank and not (args.folder / "-".join(spec)).exists()]
    if own and (step, place) == (int(own[0][1]), own[0][2]):
        spec = own[0]
        (args.folder / "-".join(spec)).touch()
        how = spec[3] if len(spec) > 3 else "kill"
        if how in ("exit", "leave"):
            os._exit(3 if how == "exit" else 0)
        if how == "raise":
            raise ValueError(f"rank {rank} has had enough at step {step}")
        if how == "memory":
            Path(os.environ["MEMORY_GROUP"], "cgroup.procs").write_text(str(os.getpid()))
            hoard = []
            while True:
                hoard.append(bytearray(os.urandom(1 << 20)))
        victim = os.getppid() if how == "node" else os.getpid()
        while how == "node" and not (args.folder / f"allowed-{step}").exists():
            time.sleep(0.01)  # the manager may still be starting, and cannot miss a node that it never saw
        os.kill(victim, signal.SIGTERM if how == "term" else signal.SIGKILL)
        signal.pause()


def in_forward(rank: int, step: int) -> None:
    """Sleep if this forward must be long, without communication or CPU use. Then die if this is the place."""
    for spec in filter(None, args.long.split(",")):
        marker = args.folder / f"long-{spec}"
        if spec.startswith(f"{rank}:{step}:") and not marker.exists():
            marker.touch()
            time.sleep(float(spec.rpartition(":")[2]))  # lasts: the test is about this time
    for spec, name in ((args.hold, "go"), (args.hold_again, "go-again")):
        if spec == f"{rank}:{step}" and not (args.folder / name).exists():
            say(f"holds {rank}")
            while not (args.folder / name).exists():
                time.sleep(0.01)  # the test has to do something first
    die(rank, step, "forward")


def main() -> None:
    torch.manual_seed(7)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    die(rank, -1, "setup")
    greeting: list[str | None] = [None] * world_size
    dist.all_gather_object(greeting, f"rank {rank}")
    assert greeting == [f"rank {other}" for other in range(world_size)]
    model = DistributedDataParallel(Net(), broadcast_buffers=False)
    net = model.module
    optimizers = [
        torch.optim.SGD(net.first.parameters(), lr=0.05, momentum=0.9),
        torch.optim.AdamW(net.second.parameters(), lr=1e-2),
    ]
    schedules = [torch.optim.lr_scheduler.StepLR(one, 5, 0.7) for one in optimizers]
    own = torch.zeros(args.local_bytes // 4)
    now = {"step": -1}
    net.first.register_forward_hook(lambda *_: in_forward(rank, now["step"]))
    net.first[0].weight.register_hook(lambda _: die(rank, now["step"], "backward"))
    torch.manual_seed(100 + rank)
    sampler = taskd.StepSampler(Noise(), BATCH, seed=3)
    if not args.plain:
        session = taskd.session()
        local = {"own": own} if args.local_bytes else {}
        session.register(model=model, optimizer=optimizers, scheduler=schedules, local=local)
    loader = DataLoader(Noise(), batch_sampler=sampler, num_workers=args.loader_workers)
    ids = args.folder / "ids"
    ids.mkdir(exist_ok=True)
    say(f"begin {rank}")

    def body(number: int, batch: list[torch.Tensor], rehearsal: bool) -> None:
        now["step"] = -2 if rehearsal else number
        die(rank, now["step"], "start")
        indices, inputs = batch
        if not rehearsal:
            (ids / f"{rank}-{number}").write_text(" ".join(str(int(index)) for index in indices))
        for one in optimizers:
            one.zero_grad()
        if args.local_bytes:
            own.add_(torch.rand(1))
        pieces = inputs.chunk(args.accumulate)
        for at, piece in enumerate(pieces):
            with contextlib.nullcontext() if at == len(pieces) - 1 else model.no_sync():
                nn.functional.mse_loss(model(piece), piece).backward()
        while not rehearsal and args.late == f"{rank}:{number}" and control.mode == Mode.NORMAL:
            time.sleep(0.002)
        optimizers[0].step()
        die(rank, now["step"], "optimizer")
        optimizers[1].step()
        die(rank, now["step"], "applied")
        for one in schedules:
            one.step()
        die(rank, now["step"], "end")
        if rank == 0 and not rehearsal:
            say(f"step {number}")

    if args.plain:
        for number, batch in enumerate(loader):
            body(number, batch, False)
    else:
        for step in session.steps(loader):
            with step as batch:
                body(step.number, batch, step.rehearsal)
            if not step.rehearsal:
                die(rank, step.number, "between")
    die(rank, -1, "after")
    say_weights(rank, net, optimizers, own)
    dist.barrier()
    dist.destroy_process_group()


def say_weights(rank: int, net: nn.Module, optimizers: list[torch.optim.Optimizer], own: torch.Tensor) -> None:
    """Print the hash of all that this rank has: parameters, buffers, optimizer state and its own state."""
    state = torch.cat([value.detach().double().flatten() for value in net.state_dict().values()])
    moments = [v.double().flatten() for one in optimizers for s in one.state.values() for v in s.values()]
    everything = torch.cat([state, *moments, own.double()]).numpy().tobytes()
    say(f"weights {rank} {hashlib.sha256(everything).hexdigest()}")


if __name__ == "__main__":
    main()
