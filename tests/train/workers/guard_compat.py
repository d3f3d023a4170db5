"""Four ranks use groups in every shape that frameworks make, before and after their inner groups were replaced.

Arguments: RANK SIZE FOLDER, then the scenarios to run (all if none is named). A line of JSON reports each.
"""

from __future__ import annotations

import json
import os
import select
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from meeting import Meeting
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

import taskd
from taskd import _c10d, _native
from taskd.comm import guard
from taskd.worker import lateness
from tests.patience import PATIENCE, PATIENCE_S

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
control = _c10d.control
scenarios: dict[str, Callable[[], None]] = {}
meet: Any = None
everybody: Any = None


def scenario(body: Callable[[], None]) -> Callable[[], None]:
    scenarios[body.__name__] = body
    return body


def begin(name: str, backend: str = "gloo") -> None:
    where = f"file://{FOLDER}/{name}"
    dist.init_process_group(backend, init_method=where, rank=RANK, world_size=SIZE, timeout=PATIENCE)


def heal() -> None:
    """Give up a step while an operation is under way that cannot end. Then give every group a new inner group."""
    everybody()  # all have finished: a rank that begins an epoch closes the connections of the epoch before
    epoch = control.epoch + 1
    work = dist.all_reduce(torch.ones(50_000), async_op=True) if RANK else None
    control.drain(epoch)
    try:
        if work is not None:
            work.wait()
            raise AssertionError("an operation of a step that was given up says that it is done")
    except taskd.StepAbandoned:
        pass
    guard.quiesce(PATIENCE)
    guard.rebuild(epoch, dist.PrefixStore("heal", meet), within=PATIENCE)
    control.take_events()
    control.resume(epoch)


def sums_to(group: Any, wanted: int) -> bool:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    return tensor.tolist() == [wanted] * 3


def guarded(group: Any) -> bool:
    return isinstance(group._get_backend(torch.device("cpu")), _c10d.Guard)


def train(mesh: DeviceMesh, between: Callable[[], None]) -> float:
    """Train two steps with FSDP2. On a mesh of two dimensions, the last one shards and the first one replicates."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 4))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((4, 16), RANK + 1.0)).sum().backward()
        optimizer.step()
        between()
    return sum(float(parameter.full_tensor().double().sum()) for parameter in model.parameters())  # type: ignore[attr-defined]


@scenario
def meshes_of_two_and_three_dimensions() -> None:
    flat = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "fsdp"))
    deep = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("pp", "dp", "tp"))
    for turn in range(2):
        for mesh, size in ((flat["dp"], 2), (flat["fsdp"], 2), (deep["pp"], 2), (deep["dp"], 1), (deep["tp"], 2)):
            assert guarded(mesh.get_group()) and sums_to(mesh.get_group(), size)
        assert sums_to(None, SIZE)
        if turn == 0:
            heal()
    assert train(flat, lambda: None) == train(flat, heal), "a repair between two steps changes no bit"


@scenario
def groups_made_after_a_fault() -> None:
    heal()
    later = dist.new_group([0, 2])
    assert RANK not in (0, 2) or sums_to(later, 2)
    mesh = init_device_mesh("cpu", (2, 2))
    heal()
    assert RANK not in (0, 2) or sums_to(later, 2)
    assert sums_to(mesh.get_group(0), 2) and sums_to(mesh.get_group(1), 2)
    taskd.monitored_barrier()


@scenario
def torn_down_and_set_up_again() -> None:
    for turn in range(3):
        dist.destroy_process_group()
        assert guard.groups() == []
        begin(f"again{turn}")
        assert sums_to(None, SIZE) and len(guard.groups()) == 1
        heal()
        assert sums_to(None, SIZE)
    taskd.monitored_barrier()


@scenario
def compiled_collectives_outlive_a_repair() -> None:
    @torch.compile(backend="aot_eager", fullgraph=True)
    def doubled(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1

    for _ in range(2):
        assert doubled(torch.ones(4)).tolist() == [2 * SIZE + 1] * 4
        heal()


@scenario
def messages_stand_in_the_beat_page() -> None:
    page = _native.Page.create(RANK, 1)
    control.attach_page(page.fd)
    group: Any = dist.new_group(list(range(SIZE)))
    backend = group._get_backend(torch.device("cpu"))
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    box = torch.zeros(4)
    works = [dist.isend(torch.full((4,), float(RANK)), right, group=group), dist.irecv(box, left, group=group)]
    for work in works:
        work.wait()
    assert box.tolist() == [left] * 4
    unanswered = dist.irecv(torch.zeros(8), left, group=group)

    def seen() -> list[int]:
        (slot,) = [one for one in page.read_groups() if one.group == backend.message_number]
        return [slot.sequence, slot.left_sequence, slot.bytes]

    assert seen() == [3, 2, 32], "entered three times, left twice: it waits for a message"
    beat = page.read()
    assert beat is not None and (beat.group, beat.sequence) == (backend.message_number, 3)
    dist.barrier(group)
    dist.isend(torch.ones(8), right, group=group).wait()
    unanswered.wait()
    assert seen()[:2] == [4, 4]
    heal()
    dist.send(torch.ones(1), right, group=group) if RANK % 2 else dist.recv(torch.ones(1), left, group=group)
    assert seen() == [1, 1, 4], "numbered anew in a new epoch"
    dist.destroy_process_group(group)
    assert backend.message_number not in [one.group for one in page.read_groups()]


@scenario
def what_is_far_out_of_the_jobs_rhythm_is_announced_and_goes_on() -> None:
    """A collective and a message are late. The job has had enough of both to know how long they take."""
    right, left = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    box, tensor = torch.zeros(2), torch.ones(2)
    for _ in range(40):
        dist.all_reduce(torch.ones(2))
        for work in [dist.isend(torch.ones(2), right), dist.irecv(box, left)]:
            work.wait()
    control.take_events()
    if RANK:
        works = [dist.all_reduce(tensor, async_op=True), dist.irecv(box, left)]
        kinds: set[str] = set()
        ready = select.poll()
        ready.register(control.event_fd, select.POLLIN)
        while not kinds >= ({"allreduce", "recv"} if RANK == 1 else {"allreduce"}):
            assert ready.poll(PATIENCE_S * 1000), f"only {kinds} were announced"
            for group, kind, sequence, words, _, _ in control.take_events():
                late = lateness.evidence_of(RANK, 1, group, kind, sequence, words)
                assert late is not None and late.waited_ms >= 5_000, words
                assert late.operation == f"{kind} #{sequence} of group {group}", late
                kinds.add(kind)
        assert not any(work.is_completed() for work in works[: 2 if RANK == 1 else 1]), "announced, not failed"
        meet.set(f"heard{RANK}", b"")
        dist.isend(torch.ones(2), right).wait()
    else:
        meet.wait([f"heard{rank}" for rank in range(1, SIZE)], PATIENCE)
        works = [dist.all_reduce(tensor, async_op=True), dist.irecv(box, left), dist.isend(torch.ones(2), right)]
    for work in works:
        work.wait()
    assert tensor.tolist() == [SIZE] * 2 and box.tolist() == [1, 1]


@scenario
def a_device_that_is_not_here_beside_the_cpu() -> None:
    """A group may have a backend for each device. The guard stays the CPU's backend, and the other one is unchanged."""
    dist.destroy_process_group()
    for turn in range(2):
        words = ""
        try:
            begin(f"nccl{turn}", "cpu:gloo,cuda:nccl")
        except RuntimeError as error:
            words = str(error)
        assert words == "Distributed package doesn't have NCCL built in" or dist.is_nccl_available(), words
        if dist.is_initialized():
            dist.destroy_process_group()
    made: list[Any] = []

    def creator(store: Any, rank: int, size: int, timeout: timedelta) -> Any:
        made.append(_c10d.Guard(rank, size, None, list(range(size)), 99, timeout=timeout))
        return made[-1]

    dist.Backend.register_backend("noted", creator, devices=["cuda"])
    begin("two", "cpu:gloo,cuda:noted")
    group: Any = dist.group.WORLD
    assert guarded(group) and group._get_backend(torch.device("cuda")) is made[0]
    assert group._get_backend(torch.device("cpu")) is not made[0] and sums_to(None, SIZE)
    dist.destroy_process_group()
    made.clear()
    begin("after")


def main() -> None:
    global meet, everybody
    torch.set_num_threads(1)
    guard.install(hostname="127.0.0.1")
    begin("store")
    everybody = Meeting(FOLDER, SIZE)
    meet = everybody.store
    control.attached = True
    for name in sys.argv[4:] or scenarios:
        try:
            scenarios[name]()
            assert sums_to(None, SIZE)
            outcome = "ok"
        except BaseException:
            outcome = traceback.format_exc()
        print(json.dumps({"scenario": name, "outcome": outcome}), flush=True)
        if outcome != "ok":
            os._exit(1)
    control.attached = False
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
