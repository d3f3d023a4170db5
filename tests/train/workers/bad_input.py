"""A small training that does one thing wrong, or one thing that others have found hard, named by --case.

Rank 1 kills itself once, in the backward of step --at (never, if that is negative). Some cases act only in the process
that replaces it, and know this from a file in --folder. Prints "weights RANK HASH" at its end.
"""

from __future__ import annotations

import argparse
import copy
import ctypes
import hashlib
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import taskd

parser = argparse.ArgumentParser()
parser.add_argument("--folder", type=Path, required=True)
parser.add_argument("--case", default="")
parser.add_argument("--steps", type=int, default=8)
parser.add_argument("--at", type=int, default=4)
args = parser.parse_args()
CASE = args.case.strip()
BATCH = 4


def say(line: str) -> None:
    """Write the line with one write. An unbuffered print() writes the newline separately."""
    os.write(1, f"{line}\n".encode())


def once(name: str) -> bool:
    """Whether this is the first call with this name, in all processes."""
    try:
        (args.folder / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


class Net(nn.Module):
    def __init__(self, width: int, last: str) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(8, width), nn.LayerNorm(width), nn.ReLU(), nn.Dropout(0.2))
        setattr(self, last, nn.Linear(width, 8))
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return getattr(self, self.last)(self.first(x))


class Alone(nn.Module):
    """Replaces DistributedDataParallel: each rank has weights of its own, and the ranks only wait for each other."""

    def __init__(self, module: Net) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(torch.zeros(1))
        return self.module(x)


groups_of_some: list[Any] = []  # torch drops a group without a reference


def linger() -> int:
    """Fork a child that lives on after its parent was killed, with all that it has inherited."""
    child = os.fork()
    if child == 0:
        os.setsid()  # so that a kill of its parent's process group does not reach it
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        signal.alarm(120)
        while True:
            signal.pause()
    (args.folder / f"child-{child}").touch()
    return child


def double(number: int) -> int:
    return 2 * number


def have_children(rank: int) -> None:
    """Make processes in every way that scripts use, while the groups, the store and taskd's connection are open."""
    if once(f"forked-{rank}"):
        linger()
        words = [sys.executable, "-c", "import signal; signal.alarm(120); signal.pause()"]
        # close_fds=False: the child inherits all that it can.
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
        child = subprocess.Popen(words, close_fds=False, **quiet)
        (args.folder / f"child-{child.pid}").touch()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(double, range(4)) == [0, 2, 4, 6]


def handle_term(rank: int) -> None:
    def leave(*_: object) -> None:
        say(f"handler of rank {rank}")
        sys.exit(7)

    signal.signal(signal.SIGTERM, leave)


def fill_shared_memory() -> None:
    """Mount a /dev/shm of one page and fill it. Only this thread and the processes that it makes see the mount."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, private, all_below = 0x20000, 1 << 18, 1 << 14
    if libc.unshare(new_mounts) or libc.mount(b"none", b"/", None, private | all_below, None):
        say("this needs root")
        sys.exit(1)
    assert libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, b"size=4k") == 0
    Path("/dev/shm/all").write_bytes(bytes(4096))


def narrow(rank: int) -> None:
    """After the start, take away what a process may usually do."""
    if CASE == "few files":
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    elif CASE == "no files":  # no new file descriptor can be opened
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, 4096))
    elif CASE == "full shared memory":
        fill_shared_memory()
    elif CASE == "small files":
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def sharded(net: Net) -> Net:
    """Shard over all ranks, or replicate and shard on a mesh. The imports are here since they take a second."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    size = dist.get_world_size()
    shape, names = ((size,), ("shards",)) if CASE == "shards" else ((1, size), ("replicas", "shards"))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in (net.first, getattr(net, net.last)):
        fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def build(rank: int, newcomer: bool) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    different = CASE if newcomer else ""
    if different == "collectives":
        dist.all_reduce(torch.zeros(2))
    dist.broadcast(torch.zeros(3), 0)
    net = Net(12 if different == "shape" else 16, "other" if different == "name" else "second")
    if CASE == "parts":
        for parameter in net.parameters():
            parameter.data.mul_(1 + rank)
    if CASE == "subgroups":
        own = [dist.new_group([one]) for one in range(dist.get_world_size())][rank]
        dist.all_reduce(torch.zeros(1), group=own)
        groups_of_some.append(own)
    if CASE in ("shards", "mesh"):
        net = sharded(net)
    static = CASE == "carried gradients"
    model: Any = (
        Alone(net) if CASE in ("parts", "shards", "mesh") else DistributedDataParallel(net, static_graph=static)
    )
    groups: Any = model.parameters()
    if different == "groups":
        groups = [{"params": net.first.parameters()}, {"params": net.second.parameters()}]
    return model, torch.optim.AdamW(groups, lr=1e-2)


class Count:
    """A count that moves at the begin of a step, before it is known whether the step is given up."""

    steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


class Training:
    def __init__(self) -> None:
        torch.manual_seed(7)
        torch.set_num_threads(1)
        if os.environ["RANK"] == "0" and not once("born-0"):
            once("all-again")
        dist.init_process_group("gloo")
        self.rank = rank = dist.get_rank()
        say(f"begin {rank} {os.getpid()}")
        self.newcomer = rank == 1 and not once("born-1") and not (args.folder / "all-again").exists()
        self.model, self.optimizer = build(rank, self.newcomer)
        self.others: list[tuple[Any, Any]] = []
        self.average = copy.deepcopy(self.model.module) if CASE.startswith("average") else None
        if CASE in ("second optimizer", "second model"):
            more = DistributedDataParallel(nn.Linear(8, 8))
            self.others.append((more, torch.optim.SGD(more.parameters(), lr=0.1)))
        self.session = taskd.session()
        optimizers = [self.optimizer]
        if CASE == "second model":  # its optimizer is registered, the module is not
            optimizers.append(self.others[0][1])
        self.count = Count()
        named: dict[str, Any] = {}
        if CASE == "average registered":
            named = {"average": self.average, "count": self.count}
        self.session.register(model=self.model.module if CASE == "inner" else self.model, optimizer=optimizers, **named)
        if CASE != "carried gradients":
            self.model.module.first[0].weight.register_hook(self.die)
        if CASE == "children":
            have_children(rank)
        elif CASE == "term":
            handle_term(rank)
        narrow(rank)
        torch.manual_seed(100 + rank)
        self.late: Any = None
        self.number = -1

    def die(self, _: torch.Tensor) -> None:
        if self.rank == 1 and self.number == args.at and once("dead-1"):
            os.kill(os.getpid(), signal.SIGTERM if CASE == "term" else signal.SIGKILL)
            signal.pause()

    def loader(self, workers: int = 0) -> DataLoader[Any]:
        count = args.steps * BATCH * dist.get_world_size()
        data = TensorDataset(torch.randn(count, 8, generator=torch.Generator().manual_seed(1)))
        own = torch.Generator()  # so that loader processes do not change the rank's own generator
        return DataLoader(
            data, batch_sampler=taskd.StepSampler(data, BATCH, seed=3), num_workers=workers, generator=own
        )

    def step(self, step: Any, batch: list[torch.Tensor]) -> None:
        self.number = -2 if step.rehearsal else step.number
        if CASE == "error" and self.rank == 1 and self.number == 3:
            raise ValueError("this batch cannot be used")
        if CASE == "late group" and step.number >= 3:
            self.late = self.late or dist.new_group([0, 1])
            dist.all_reduce(torch.zeros(1), group=self.late)
        (inputs,) = batch
        self.count.steps += 1
        carried = CASE == "carried gradients" and step.number % 2 == 0
        if CASE != "carried gradients" or carried:
            self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(inputs), inputs)
        for model, _ in self.others:
            model.zero_grad()
            loss = loss + nn.functional.mse_loss(model(inputs), inputs)
        loss.backward()
        if CASE in ("shards", "mesh"):  # their parameters call no hooks of the user
            self.die(loss)
        if carried:  # gradients go to the next step, and the rank dies between the two
            self.die(loss)
            return
        self.optimizer.step()
        for _, optimizer in self.others:
            optimizer.step()
        if self.average is not None:
            for mine, new in zip(self.average.parameters(), self.model.module.parameters(), strict=True):
                mine.data.lerp_(new.data, 0.1)
        if self.rank == 0 and not step.rehearsal:
            say(f"step {step.number}")

    def run(self) -> None:
        workers = 1 if CASE in ("small files", "few files", "full shared memory") else 0
        loops = 2 if CASE == "two loops" else 1
        for loop in range(loops):
            for step in self.session.steps(self.loader(workers)):
                with step as batch:
                    self.step(step, batch)
                if CASE == "break" and step.number == args.steps - 3:
                    break
            say(f"loop {loop} ended on {self.rank}")
        values = self.model.module.state_dict().values()
        state = [getattr(value, "full_tensor", lambda value=value: value)() for value in values]
        state = [value.detach().double().flatten() for value in state]
        for item in (self.average, *(model for model, _ in self.others)):
            if item is not None:
                state += [value.detach().double().flatten() for value in item.state_dict().values()]
        if CASE == "average registered":
            say(f"counted {self.count.steps}")
        say(f"weights {self.rank} {hashlib.sha256(torch.cat(state).numpy().tobytes()).hexdigest()}")
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    Training().run()
