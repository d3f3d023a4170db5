"""Groups that a job made without taskd are guarded and healed while DDP uses them. Also tests other unusual cases.

Arguments: RANK SIZE FOLDER HOW. HOW is "adopt", or the way this process ends: "end" (in good order), "leave" (without
destroying its groups), "leave busy" (in the middle of an operation), "abort" (its group), "page" (with a beat page).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from meeting import Meeting
from torch.nn.parallel import DistributedDataParallel

from taskd import _c10d, _native
from taskd.comm import guard
from tests.patience import PATIENCE

RANK, SIZE, FOLDER, HOW = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
control = _c10d.control


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def begin() -> None:
    dist.init_process_group("gloo", init_method=f"file://{FOLDER}/store", rank=RANK, world_size=SIZE, timeout=PATIENCE)


def train(model: DistributedDataParallel, steps: int) -> bool:
    """Train some steps. Returns whether all ranks have the same gradients."""
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(4, 16)).sum().backward()
    everywhere = [torch.zeros(16, 16) for _ in range(SIZE)]
    dist.all_gather(everywhere, model.module.weight.grad)
    return all(torch.equal(one, everywhere[0]) for one in everywhere)


def adopt() -> None:
    begin()
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    pair = dist.new_group([0, 1])
    assert train(model, 2)
    identities = guard.adopt()
    same = train(model, 2)
    later = dist.new_group([0, 1])
    everybody = Meeting(FOLDER, SIZE)
    store = dist.PrefixStore("heal", everybody.store)
    for epoch in (1, 2):
        everybody()  # wait until both ranks have finished their operations
        control.drain(epoch)
        rebuilt = guard.rebuild(epoch, store, within=PATIENCE)
        control.resume(epoch)
        same = same and train(model, 2)
        for group in (pair, later):
            tensor = torch.ones(2)
            dist.all_reduce(tensor, group=group)
            same = same and int(tensor[0]) == SIZE
    say(identities=identities, rebuilt=rebuilt, same=same, name=dist.get_backend())
    dist.destroy_process_group()
    say(left=guard.groups())


def aborted() -> None:
    guard.install(hostname="127.0.0.1")
    begin()
    group = dist.new_group([0, 1])
    dist.barrier()  # now the other rank has joined the group, too
    work = dist.all_reduce(torch.ones(2), group=group, async_op=True) if RANK == 0 else None
    if RANK == 1:
        dist.barrier()  # now rank 0 has seen its own abort
    group.abort()
    texts = []
    for call in (work.wait if work else lambda: dist.barrier(group), lambda: dist.barrier(group)):
        try:
            call()
        except Exception as error:
            texts.append(f"{type(error).__name__}: {error}")
    if RANK == 0:
        dist.barrier()
    dist.all_reduce(torch.ones(2))
    say(texts=texts, groups=guard.groups())


def with_page() -> None:
    page = _native.Page.create(RANK, 1)
    control.attach_page(page.fd)
    guard.install(hostname="127.0.0.1")
    begin()
    pair = dist.new_group([0, 1])
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    dist.barrier(pair)
    stuck = dist.all_reduce(torch.ones(10), async_op=True) if RANK == 0 else None
    numbers = {one.number: one.identity for one in _c10d.live_guards()}
    seen, beat = {}, page.read()
    while beat is None or beat.sequence != (1 if stuck is None else 4) or len(seen) < 2:  # another thread writes it
        beat = page.read()
        seen = {
            numbers[one.group]: [one.sequence, one.left_sequence, one.bytes, one.epoch] for one in page.read_groups()
        }
    dist.barrier(pair)
    if stuck is None:
        dist.all_reduce(torch.ones(10))
    else:
        stuck.wait()
    dist.destroy_process_group(pair)
    after = [numbers[slot.group] for slot in page.read_groups()]
    say(seen=seen, last=numbers[beat.group], after=after)
    dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    if HOW == "adopt":
        adopt()
    elif HOW == "abort":
        aborted()
    elif HOW == "page":
        with_page()
    else:
        guard.install(hostname="127.0.0.1")
        begin()
        model = DistributedDataParallel(torch.nn.Linear(16, 16))
        say(same=train(model, 2))
        if HOW == "leave busy" and RANK == 0:
            dist.all_reduce(torch.ones(100_000), async_op=True)
        if HOW == "end":
            dist.destroy_process_group()


if __name__ == "__main__":
    main()
