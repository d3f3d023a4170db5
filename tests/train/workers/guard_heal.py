"""Three ranks train with DDP. One kills itself inside a step, a new process takes its place, and no other restarts.

This script does by hand what a session does: a listener drains, the ranks agree on a step, rebuild, and give the
newcomer its state. Arguments: RANK SIZE FOLDER PORT KILL_STEP, and "newcomer" for the process that replaces the dead
one. KILL_STEP -1: no rank dies. Reports the hash of the final weights. It must be the same with and without a death.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd import _c10d
from taskd.comm import guard
from taskd.errors import StepAbandoned
from tests.patience import PATIENCE

RANK, SIZE, FOLDER, PORT, KILL_STEP = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:6])
NEWCOMER = sys.argv[6:] == ["newcomer"]
STEPS = 8
VICTIM = 2
ASKS_EVERY_MS = 50
control = _c10d.control


def listen(stop: int) -> None:
    """Play the worker's listener: give the step up at the first failure that a guard announces, here or on another
    rank. A rank whose neighbours have drained may see no failure of its own."""
    store = dist.TCPStore("127.0.0.1", PORT, None, False, timeout=PATIENCE)
    poll = select.poll()
    poll.register(control.event_fd, select.POLLIN)
    poll.register(stop, select.POLLIN)
    while stop not in dict(poll.poll(ASKS_EVERY_MS)):
        if control.take_events():
            store.set("drain", "")
        if control.epoch == 0 and not NEWCOMER and store.check(["drain"]):
            control.drain(1)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + RANK)
    return torch.randn(16, 32, generator=generator), torch.randn(16, 4, generator=generator)


def set_up() -> tuple[DistributedDataParallel, torch.optim.Optimizer, dist.ProcessGroup]:
    torch.manual_seed(RANK)  # DDP makes the parameters equal
    layers = [torch.nn.Linear(32, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.Linear(256, 4)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    pair = dist.new_group([0, 2])
    seeds: list[int | None] = [None] * SIZE
    dist.all_gather_object(seeds, RANK * 11)
    assert seeds == [0, 11, 22]
    return model, optimizer, pair


def train_step(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int) -> None:
    optimizer.zero_grad()
    inputs, wanted = batch(step)
    loss = torch.nn.functional.mse_loss(model(inputs), wanted)
    if RANK == VICTIM and step == KILL_STEP and not NEWCOMER:
        model.module[2].weight.register_hook(lambda _: os.kill(os.getpid(), signal.SIGKILL))
    loss.backward()
    control.wait_until_running()  # a session does this around optimizer.step
    optimizer.step()


def rehearse(model: DistributedDataParallel) -> None:
    """Do two steps alone, so that DDP rebuilds its buckets as on the survivors."""
    control.rehearsing = True
    for _ in range(2):
        model(batch(0)[0]).sum().backward()
    model.zero_grad()
    control.rehearsing = False


def join(epoch: int, store: dist.Store, model: DistributedDataParallel, optimizer: torch.optim.Optimizer) -> None:
    """Meet all ranks in the new epoch. Rank 0 broadcasts its parameters and momentum."""
    guard.rebuild(epoch, store, within=PATIENCE)
    control.resume(epoch)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
        state = optimizer.state[parameter]
        momentum = state.get("momentum_buffer")
        if momentum is None:
            momentum = state["momentum_buffer"] = torch.zeros_like(parameter)
        dist.broadcast(momentum, 0)


def main() -> None:
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", PORT, None, RANK == 0, timeout=PATIENCE, wait_for_workers=False)
    record = os.open(FOLDER / f"record{RANK}", os.O_RDWR | os.O_CREAT)
    if NEWCOMER:
        control.sandbox(record)
    else:
        control.start_record(record)
    stop, stopper = os.pipe()
    listener = threading.Thread(target=listen, args=(stop,))
    listener.start()
    control.attached = True
    guard.install(hostname="127.0.0.1")
    dist.init_process_group("gloo", store=dist.PrefixStore("job", store), rank=RANK, world_size=SIZE, timeout=PATIENCE)
    model, optimizer, pair = set_up()
    forest = guard.groups()
    step = 0
    if NEWCOMER:
        assert control.replay_left() == 0, control.replay_left()
        rehearse(model)
        step = KILL_STEP
        join(1, dist.PrefixStore("meeting", store), model, optimizer)
    else:
        control.stop_record()
    while step < STEPS:
        try:
            train_step(model, optimizer, step)
            step += 1
        except StepAbandoned:
            assert step == KILL_STEP, step
            join(1, dist.PrefixStore("meeting", store), model, optimizer)
    tensor = torch.ones(3)
    if RANK in (0, 2):
        dist.all_reduce(tensor, group=pair)
        assert int(tensor[0]) == 2
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    said = {"hash": hashlib.sha256(weights.numpy().tobytes()).hexdigest(), "groups": forest, "epoch": control.epoch}
    print(json.dumps({**said, "pid": os.getpid()}), flush=True)
    dist.barrier()
    control.attached = False
    os.write(stopper, b"x")
    listener.join()
    dist.destroy_process_group()
    store.set(f"left{RANK}", "")
    if RANK == 0:  # rank 0 runs the store
        store.wait([f"left{rank}" for rank in range(SIZE)])


if __name__ == "__main__":
    main()
