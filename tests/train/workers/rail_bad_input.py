"""Cases of wrong use of a rail group, and of operations that cannot go on. Each case has a name.

Arguments: RANK SIZE FOLDER, then the cases to run (all if none is named). Each case leaves a group that works.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taskd.comm import rail
from tests.patience import PATIENCE

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
PEER = (RANK + 1) % SIZE
cases: dict[str, Callable[[], None]] = {}


def case(body: Callable[[], None]) -> Callable[[], None]:
    cases[body.__name__] = body
    return body


def raised(call: Callable[[], Any], *words: str) -> BaseException:
    try:
        call()
    except BaseException as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} missing in: {error!r}"
        return error
    raise AssertionError("nothing was raised")


def fresh(timeout_s: float = 20) -> Any:
    """Return a new group, for a case that breaks it."""
    return dist.new_group(list(range(SIZE)), timeout=timedelta(seconds=timeout_s), backend="cpu:rail")


def backend_of(group: Any) -> Any:
    return group._get_backend(torch.device("cpu"))


@case
def different_sizes_are_named() -> None:
    group = fresh()
    error = raised(lambda: dist.all_reduce(torch.ones(3 + RANK), group=group), "all_reduce", "rank")
    assert isinstance(error, dist.DistBackendError), error


@case
def different_types_are_named() -> None:
    group = fresh()
    dtype = torch.float32 if RANK == 0 else torch.float64
    raised(lambda: dist.all_reduce(torch.ones(100, dtype=dtype), group=group), "float32", "float64")


@case
def different_types_of_one_size_are_named() -> None:
    """The sizes in bytes are equal, so without a check the bytes would be read as wrong numbers."""
    group = fresh()
    mine = torch.ones(100_000, dtype=torch.float32 if RANK == 0 else torch.int32)
    outputs = [torch.empty_like(mine) for _ in range(SIZE)]
    raised(lambda: dist.all_gather(outputs, mine, group=group), "100000 float32", "100000 int32")
    raised(lambda: dist.all_to_all(outputs, [mine] * SIZE, group=group), "float32", "int32")


@case
def different_operations_are_named() -> None:
    group = fresh()
    call = (lambda: dist.barrier(group)) if RANK == 0 else (lambda: dist.all_reduce(torch.ones(3), group=group))
    raised(call, "barrier", "all_reduce")


@case
def different_roots_are_named() -> None:
    group = fresh()
    raised(lambda: dist.broadcast(torch.ones(40_000), RANK, group=group), "broadcast")


@case
def what_cannot_be_is_refused_before_anything_is_sent() -> None:
    group = fresh()
    backend, first = backend_of(group), dist.BroadcastOptions()  # torch itself refuses these two in most calls
    raised(lambda: backend.broadcast([torch.ones(3).to_sparse()], first), "dense", "to_dense")
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    raised(lambda: backend.broadcast([quantized], first), "quantized", "dequantize")
    raised(lambda: dist.all_reduce(torch.ones(3, dtype=torch.float8_e4m3fn), group=group), "Float8", "convert")
    raised(lambda: dist.all_reduce(torch.ones(3), op=dist.ReduceOp.BAND, group=group), "float32", "ReduceOp")
    factor: Any = dist._make_nccl_premul_sum(2.0)
    raised(lambda: dist.all_reduce(torch.ones(3), op=factor, group=group), "NCCL", "SUM")
    raised(lambda: dist.all_gather([torch.ones(2)] * SIZE, torch.ones(3), group=group), "invalid tensor size")
    raised(lambda: dist.all_gather_into_tensor(torch.ones(5), torch.ones(3), group=group), "invalid tensor size")
    raised(lambda: dist.send(torch.ones(1), PEER, tag=-1, group=group), "tag")
    rows, splits = torch.ones(SIZE), [-1, *[0] * (SIZE - 2), SIZE + 1]
    raised(lambda: dist.all_to_all_single(rows, rows.clone(), splits, splits, group=group), "-1 rows")
    overlapping = torch.ones(1).expand(5)
    if RANK != 0:
        raised(lambda: dist.broadcast(overlapping, 0, group=group), "single memory location")
    freed = torch.ones(64)
    freed.untyped_storage().resize_(0)
    raised(lambda: dist.all_reduce(freed, group=group), "given back")
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)  # has the same number on all ranks: no call above was begun
    assert int(tensor[0]) == SIZE


@case
def a_message_of_another_size_is_named() -> None:
    group = fresh()
    if RANK == 0:
        work = dist.isend(torch.ones(50), 1, group=group)
        with suppress(RuntimeError):  # may fail by the size, or not: the message was copied
            work.wait()
    elif RANK == 1:
        raised(lambda: dist.recv(torch.ones(40), 0, group=group), "50 float32", "40 float32")


@case
def a_time_limit_names_who_is_missing() -> None:
    group = fresh()
    backend_of(group)._set_default_timeout(timedelta(seconds=1))  # now that its ranks have met
    if RANK == 0:
        begun = time.monotonic()
        error = raised(lambda: dist.all_reduce(torch.ones(3), group=group), "all_reduce", "rank 1")
        assert isinstance(error, dist.DistBackendError) and time.monotonic() - begun > 0.9, error
    dist.barrier()


@case
def a_group_of_one() -> None:
    groups = [dist.new_group([rank], backend="cpu:rail") for rank in range(SIZE)]
    alone = groups[RANK]
    tensor = torch.arange(5.0)
    dist.all_reduce(tensor, group=alone)
    outputs = [torch.zeros(5)]
    dist.all_gather(outputs, tensor, group=alone)
    dist.reduce_scatter(outputs[0], [tensor], group=alone)
    dist.broadcast(tensor, RANK, group=alone)
    dist.all_to_all_single(outputs[0], tensor, group=alone)
    dist.barrier(alone)
    assert torch.equal(tensor, torch.arange(5.0)) and torch.equal(outputs[0], tensor)


@case
def an_abort_is_exact() -> None:
    """After an abort has returned, nothing is written to the tensors, even if peers still send."""
    for size in (10, 300_000):
        group = fresh()
        dist.barrier()
        tensors = [torch.full((size,), 1.0) for _ in range(4)] + [torch.ones(size // 5, 5).t()]
        works = [dist.all_reduce(one, group=group, async_op=True) for one in tensors] if RANK == 0 else []
        box = torch.zeros(size)
        if RANK == 0:
            works.append(dist.irecv(box, 1, group=group))
            backend_of(group).abort()
            held = [one.clone() for one in [*tensors, box]]
            for work in works:
                assert work.is_completed() and not work.is_success()
                raised(work.wait, "abort")
            raised(lambda group=group: dist.barrier(group), "abort")
        dist.barrier()
        if RANK != 0:
            later = [dist.all_reduce(torch.ones(size), group=group, async_op=True)]
            if RANK == 1:
                later.append(dist.isend(torch.ones(size), 0, group=group))
            del later
        dist.barrier()
        if RANK == 0:
            assert all(torch.equal(one, other) for one, other in zip([*tensors, box], held, strict=True))
        dist.barrier()


@case
def signals_are_served_in_a_wait() -> None:
    if RANK == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        error = raised(work.wait)
        assert isinstance(error, KeyboardInterrupt), error
        dist.send(torch.zeros(1), 1)
        work.wait()
    else:
        if RANK == 1:
            dist.recv(torch.zeros(1), 0)
        dist.all_reduce(torch.ones(3))


@case
def works_that_nobody_keeps_end_by_themselves() -> None:
    for size in (10, 100_000):
        for turn in range(50):
            tensor = torch.full((size,), float(turn))
            dist.all_reduce(tensor, async_op=True)
            if turn % 5 == 0:
                dist.all_reduce(torch.ones(size), async_op=True).get_future().then(lambda done: done.value()[0].sum())
            del tensor
        dist.barrier()


@case
def a_forked_child_leaves_the_groups_alone() -> None:
    child = os.fork()
    if child == 0:
        code = 3
        try:
            dist.destroy_process_group()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    assert int(tensor[0]) == SIZE
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dist.all_reduce(tensor)


def main() -> None:
    torch.set_num_threads(1)
    rail.register()
    where = f"file://{FOLDER}/store"
    limit = PATIENCE
    dist.init_process_group("cpu:rail", init_method=where, rank=RANK, world_size=SIZE, timeout=limit)
    for name in sys.argv[4:] or cases:
        try:
            cases[name]()
            tensor = torch.ones(7)
            dist.all_reduce(tensor)
            assert int(tensor[0]) == SIZE
            outcome = "ok"
        except BaseException:
            outcome = traceback.format_exc()
        print(json.dumps({"case": name, "outcome": outcome}), flush=True)
        if outcome != "ok":
            os._exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
