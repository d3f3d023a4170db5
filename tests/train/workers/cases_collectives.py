"""API cases: every collective, point-to-point operation and group call of torch.distributed, by itself."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from cases import RANK, SIZE, case, guarded

from taskd import _c10d
from taskd.comm import guard
from tests.patience import PATIENCE


@case
@guarded
def names() -> None:
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert isinstance(backend, _c10d.Guard), type(backend)
    assert dist.get_backend() == "gloo" and backend.name() == "gloo"
    assert backend.identity == f"0@0-{SIZE - 1}" and backend.members == list(range(SIZE))
    assert backend.timeout == PATIENCE


@case
def all_reduce() -> None:
    tensor = torch.full((4,), RANK + 1.0)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((4,), SIZE * (SIZE + 1) / 2))
    for op, wanted in ((dist.ReduceOp.MAX, SIZE - 1.0), (dist.ReduceOp.MIN, 0.0), (dist.ReduceOp.AVG, (SIZE - 1) / 2)):
        tensor = torch.full((3, 5), float(RANK))
        dist.all_reduce(tensor, op=op)
        assert torch.equal(tensor, torch.full((3, 5), wanted)), op
    for dtype in (torch.float64, torch.int64, torch.int32, torch.uint8, torch.float16, torch.bfloat16):
        tensor = torch.ones(100_003, dtype=dtype)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((100_003,), SIZE, dtype=dtype)), dtype
    empty = torch.zeros(0)
    dist.all_reduce(empty)


@case
def non_contiguous_and_requiring_grad() -> None:
    parameter = torch.ones(8, 6, requires_grad=True)
    with torch.no_grad():
        dist.all_reduce(parameter)
    assert torch.equal(parameter.detach(), torch.full((8, 6), float(SIZE)))
    work = dist.broadcast(parameter, 0, async_op=True)
    work.wait()


@case
def sparse() -> None:
    tensor = torch.sparse_coo_tensor([[RANK]], [1.0], (SIZE,))
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), torch.ones(SIZE))


@case
def gathers() -> None:
    outputs = [torch.zeros(2) for _ in range(SIZE)]
    dist.all_gather(outputs, torch.full((2,), float(RANK)))
    assert [int(one[0]) for one in outputs] == list(range(SIZE))
    flat = torch.zeros(2 * SIZE)
    dist.all_gather_into_tensor(flat, torch.full((2,), float(RANK)))
    assert torch.equal(flat, torch.arange(SIZE).repeat_interleave(2).float())
    gathered = [torch.zeros(2) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(torch.full((2,), float(RANK)), gathered)
    assert gathered is None or [int(one[1]) for one in gathered] == list(range(SIZE))
    lists = [[torch.zeros(2), torch.zeros(3)] for _ in range(SIZE)]
    dist.all_gather_coalesced(lists, [torch.full((2,), float(RANK)), torch.full((3,), float(RANK))])
    assert [int(pair[1][0]) for pair in lists] == list(range(SIZE))


@case
def scatters() -> None:
    output = torch.zeros(2)
    dist.scatter(output, [torch.full((2,), float(rank)) for rank in range(SIZE)] if RANK == 0 else None)
    assert int(output[0]) == RANK
    dist.reduce_scatter(output, [torch.full((2,), float(rank)) for rank in range(SIZE)])
    assert int(output[0]) == RANK * SIZE
    dist.reduce_scatter_tensor(output, torch.arange(2.0 * SIZE))
    assert torch.equal(output, SIZE * torch.arange(2.0 * RANK, 2.0 * RANK + 2))
    work = dist.reduce_scatter_tensor(output, torch.ones(2 * SIZE), async_op=True)
    assert torch.equal(work.get_future().wait()[0], torch.full((2,), float(SIZE)))
    work.wait()
    assert work.is_completed() and work.is_success()


@case
def broadcast_and_reduce() -> None:
    tensor = torch.full((70_000,), float(RANK))
    dist.broadcast(tensor, SIZE - 1)
    assert torch.equal(tensor, torch.full((70_000,), SIZE - 1.0))
    tensor = torch.full((3,), RANK + 1.0)
    dist.reduce(tensor, 0)
    assert int(tensor[0]) == (SIZE * (SIZE + 1) // 2 if RANK == 0 else RANK + 1)


@case
def all_to_all() -> None:
    output = torch.zeros(SIZE)
    dist.all_to_all_single(output, torch.arange(SIZE) + 10.0 * RANK)
    assert torch.equal(output, 10.0 * torch.arange(SIZE) + RANK)
    outputs = [torch.zeros(3) for _ in range(SIZE)]
    dist.all_to_all(outputs, [torch.full((3,), 10.0 * RANK + rank) for rank in range(SIZE)])
    assert [int(one[0]) for one in outputs] == [10 * rank + RANK for rank in range(SIZE)]
    splits = [1 + rank for rank in range(SIZE)]
    output = torch.zeros(SIZE * splits[RANK])
    dist.all_to_all_single(output, torch.ones(sum(splits)), [splits[RANK]] * SIZE, splits)


@case
def a_shorter_message_leaves_the_rest_as_it_was() -> None:
    peer = 1 - RANK
    for source, count in itertools.product((peer, None), (3, 50_000)):
        for box in (torch.full((100_000,), 7.0), torch.full((2, 100_000), 7.0)[0], torch.full((100_000, 2), 7.0)[:, 0]):
            work = dist.isend(torch.full((count,), float(RANK)), peer)
            assert dist.recv(box, source) == peer
            work.wait()
            assert torch.equal(box[:count], torch.full((count,), float(peer)))
            assert torch.equal(box[count:], torch.full((100_000 - count,), 7.0))


@case
def what_moves_bytes_takes_any_type_of_the_same_size() -> None:
    peer = 1 - RANK
    for count in (4, 100_000):
        mine = torch.full((count,), float(RANK + 1))
        box = torch.zeros(count, dtype=torch.int32)
        work = dist.isend(mine, peer)
        dist.recv(box, peer)
        work.wait()
        assert torch.equal(box.view(torch.float32), torch.full((count,), float(peer + 1)))
        told = mine if RANK == 0 else torch.zeros(count // 2, dtype=torch.int64)
        dist.broadcast(told, 0)
        assert torch.equal(told.view(torch.float32), torch.ones(count))


@case
def point_to_point() -> None:
    peer = 1 - RANK
    if RANK == 0:
        dist.send(torch.arange(3.0), 1)
        tensor = torch.zeros(3)
        assert dist.recv(tensor) == 1 and int(tensor[0]) == 7
    else:
        tensor = torch.zeros(3)
        assert dist.recv(tensor, 0) == 0 and torch.equal(tensor, torch.arange(3.0))
        dist.send(torch.full((3,), 7.0), 0)
    for tag in range(3):  # within a pair and tag, messages keep their order
        sent = [dist.isend(torch.full((50_000,), float(i)), peer, tag=tag) for i in range(5)]
        boxes = [torch.zeros(50_000) for _ in range(5)]
        received = [dist.irecv(box, peer, tag=tag) for box in boxes]
        for work in [*received[::-1], *sent]:
            work.wait()
        assert [int(box[-1]) for box in boxes] == list(range(5))
    box = torch.zeros(3)
    ops = [dist.P2POp(dist.isend, torch.full((3,), float(RANK)), peer), dist.P2POp(dist.irecv, box, peer)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    assert int(box[0]) == peer
    work = dist.irecv(box, peer)
    dist.send(torch.full((3,), 5.0), peer)
    work.wait()
    assert work._source_rank() == peer and int(work.get_future().value()[0][0]) == 5


@case
@guarded
def a_group_that_is_split_off_is_guarded() -> None:
    parent, name = dist.group.WORLD, f"split {len(guard.groups())}"
    options = parent._get_backend(torch.device("cpu")).options
    both = parent.split_group(list(range(SIZE)), timeout=PATIENCE, opts=options, group_name=name, group_desc="")
    last = parent.split_group([SIZE - 1], timeout=PATIENCE, opts=options, group_name=name + " last", group_desc="")
    assert (last is None) == (RANK < SIZE - 1)
    for group in (both, last):
        if group is None:
            continue
        backend = group._get_backend(torch.device("cpu"))
        assert isinstance(backend, _c10d.Guard) and backend.size() == group.size(), backend
        tensor = torch.ones(3)
        group.allreduce([tensor]).wait()
        assert int(tensor[0]) == group.size()
        group.shutdown()


@case
@guarded
def barriers() -> None:
    dist.barrier()
    dist.monitored_barrier()
    dist.monitored_barrier(timeout=PATIENCE, wait_all_ranks=True)


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    raise AssertionError("the other rank has not come")


@case
@guarded
def what_never_completes_ends_after_the_groups_timeout() -> None:
    group = dist.new_group(list(range(SIZE)))
    group._get_backend(torch.device("cpu"))._set_default_timeout(timedelta(seconds=1))  # its ranks have met
    if RANK == 0:
        begun = time.monotonic()
        words = error_of(lambda: dist.all_reduce(torch.ones(3), group=group))
        assert time.monotonic() - begun > 0.9
        assert all(
            word in words for word in ("all_reduce", guard.groups()[-1], "Timed out waiting 1000ms", "rank 1")
        ), words
        assert guard.groups()[-1] in error_of(lambda: dist.barrier(group)), "it stays broken, and says so at once"
    dist.barrier()
    dist.destroy_process_group(group)
    _c10d.control.take_events()


@case
@guarded
def a_monitored_barrier_names_who_is_missing() -> None:
    group = dist.new_group(list(range(SIZE)))
    if RANK == 0:
        soon = timedelta(milliseconds=500)
        words = error_of(lambda: dist.monitored_barrier(group, timeout=soon))
        ours, _, first = words.partition("Original exception:")
        assert "Rank 1 failed to pass monitoredBarrier" in ours and "Timed out waiting 500ms" in first, words
    dist.barrier()
    dist.destroy_process_group(group)
    _c10d.control.take_events()


@case
@guarded
def a_monitored_barrier_fails_in_torchs_words() -> None:
    alone, hasty = dist.new_group(list(range(SIZE))), dist.new_group(list(range(SIZE)))
    if RANK == 0:
        words = error_of(lambda: dist.monitored_barrier(hasty, timeout=timedelta(0)))
        assert "Rank 0 timed out in monitoredBarrier" in words, words
    else:
        soon = timedelta(milliseconds=500)  # expires: rank 0 does not come
        words = error_of(lambda: dist.monitored_barrier(alone, timeout=soon))
        wanted = f"Rank {RANK} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
        assert wanted + "from rank 0" in words, words
    dist.barrier()
    dist.destroy_process_group(alone)
    dist.destroy_process_group(hasty)
    _c10d.control.take_events()


@case
def objects() -> None:
    everybody: list[dict[str, int] | None] = [None] * SIZE
    dist.all_gather_object(everybody, {"rank": RANK})
    assert everybody == [{"rank": rank} for rank in range(SIZE)]
    told = ["from zero", 17] if RANK == 0 else [None, None]
    dist.broadcast_object_list(told, 0)
    assert told == ["from zero", 17]
    mine: list[object] = [None]
    dist.scatter_object_list(mine, [f"for {rank}" for rank in range(SIZE)] if RANK == 0 else None)
    assert mine == [f"for {RANK}"]
    gathered = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK, gathered)
    assert gathered is None or gathered == list(range(SIZE))


@case
def works_tell_the_truth() -> None:
    dist.barrier()
    if RANK == 1:
        dist.recv(torch.zeros(1), 0)  # before this, rank 0's operation cannot complete
    tensor = torch.full((4,), 1.0)
    work = dist.all_reduce(tensor, async_op=True)
    if RANK == 0:
        assert not work.is_completed() and not work.is_success()
        future = work.get_future()
        chained = future.then(lambda done: done.value()[0] * 2)
        try:
            work.wait(timedelta(milliseconds=50))  # expires: the other rank waits for this
            raise AssertionError("the wait ended although the other rank has not begun")
        except RuntimeError as error:
            assert "did not finish within 50 ms" in str(error), error
        dist.send(torch.zeros(1), 1)
        work.wait()
        assert future.done() and torch.equal(future.value()[0], tensor) and torch.equal(chained.wait(), tensor * 2)
    work.wait()
    assert work.is_completed() and work.is_success() and work.exception() is None
    assert torch.equal(work.result()[0], tensor) and int(tensor[0]) == SIZE


@case
def a_callback_may_wait_for_the_next_operation() -> None:
    second = torch.ones(3)

    def chain(done: torch.futures.Future) -> torch.Tensor:
        dist.all_reduce(second, async_op=True).get_future().wait()
        return done.value()[0] + second

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(chain)
    assert int(future.wait()[0]) == 2 * SIZE


@case
def wrong_arguments() -> None:
    try:
        dist.all_gather([torch.zeros(rank + 1) for rank in range(SIZE)], torch.ones(RANK + 1))
    except RuntimeError as error:
        assert "invalid tensor size" in str(error), error
    else:
        raise AssertionError("gloo cannot gather tensors of different sizes, and did not say so")
    assert not _c10d.control.take_events(), "the caller's mistake was announced as a fault"


@case
@guarded
def subgroups() -> None:
    first = dist.new_group([0, 1])
    second = dist.new_group([0, 1], timeout=timedelta(seconds=9))  # expires: never used
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=first)
    dist.all_reduce(tensor, group=second)
    assert int(tensor[0]) == 4
    backend = second._get_backend(torch.device("cpu"))
    assert backend.timeout == timedelta(seconds=9)
    identities = guard.groups()
    assert len(set(identities)) == len(identities) and backend.identity in identities
    dist.destroy_process_group(first)
    dist.destroy_process_group(second)
    assert backend.identity not in guard.groups()
    alone = dist.new_group([RANK]) if SIZE == 1 else [dist.new_group([rank]) for rank in range(SIZE)][RANK]
    dist.all_reduce(tensor, group=alone)
    assert int(tensor[0]) == 4
