"""API cases: tensors of every kind and layout, compared with a plain gloo group of the same ranks, row by row.

A row is one call of torch.distributed. Gloo gets the same elements in contiguous memory. If gloo has a result, the
group under test must have the same one, bit for bit. If gloo refuses, the group under test may refuse or support the
call, but it must not hang. The contents are small whole numbers, so that the order of additions makes no difference.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from cases import HOW, RANK, SIZE, case

from taskd.comm import stand_in

OPS = dist.ReduceOp
REDUCTIONS = (OPS.SUM, OPS.AVG, OPS.PRODUCT, OPS.MIN, OPS.MAX, OPS.BAND, OPS.BOR, OPS.BXOR)
WHOLE = (torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
BROKEN = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)
DTYPES = (*WHOLE, *BROKEN)
MOVED = (*DTYPES, torch.float8_e4m3fn)
Row = Callable[[Any], Any]
"""One call on a group. It returns what it has written, or raises."""


@functools.cache
def plain_gloo() -> Any:
    guarded = c10d.ProcessGroupGloo
    c10d.ProcessGroupGloo = stand_in.PlainGloo  # type: ignore[misc]
    try:
        return dist.new_group(list(range(SIZE)), backend="gloo")
    finally:
        c10d.ProcessGroupGloo = guarded  # type: ignore[misc]


def outcome(row: Row, group: Any) -> tuple[str, Any]:
    try:
        return "", row(group)
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}", None


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(equal(*pair) for pair in zip(one, other, strict=True))
    if not isinstance(one, torch.Tensor):
        return bool(one == other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype == torch.bool:  # in gloo, True + True is a byte with the value 2
        return torch.equal(one, other)
    one, other = (flat(each.to_dense()) for each in (one, other))
    return torch.equal(one.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))


def flat(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same elements in contiguous memory. Of a strided tensor, gloo would send the elements between."""
    return tensor.detach().contiguous().clone()


def compare(rows: Iterator[tuple[str, Row]]) -> None:
    """Run every row on both groups. Gloo must have a result for several rows, or the comparison is worthless."""
    with_result = 0
    for name, row in rows:
        theirs, wanted = outcome(row, plain_gloo())
        ours, found = outcome(row, None)
        with_result += not theirs
        assert theirs or not ours, f"{name}: gloo has a result, but here: {ours}"
        assert theirs or equal(found, wanted), f"{name}: {found}, but gloo has {wanted}"
    assert with_result >= 5, with_result


def contents(dtype: torch.dtype, shape: tuple[int, ...] = (6,), salt: int = 0) -> torch.Tensor:
    count = int(torch.tensor(shape).prod())
    numbers = (torch.arange(count) * (RANK + 2) + salt) % 4 + (dtype != torch.bool)
    return numbers.to(dtype).reshape(shape) if dtype != torch.bool else (numbers > 1).reshape(shape)


# ---- reductions -------------------------------------------------------------------------------------------------


def reduction_rows() -> Iterator[tuple[str, Row]]:
    for dtype, op in itertools.product(DTYPES, REDUCTIONS):

        def all_reduce(group: Any, dtype: torch.dtype = dtype, op: Any = op) -> torch.Tensor:
            tensor = contents(dtype)
            dist.all_reduce(tensor, op=op, group=group)
            return tensor

        def reduce(group: Any, dtype: torch.dtype = dtype, op: Any = op) -> torch.Tensor | None:
            tensor = contents(dtype)
            dist.reduce(tensor, 1, op=op, group=group)
            return tensor if RANK == 1 else None

        def reduce_scatter(group: Any, dtype: torch.dtype = dtype, op: Any = op) -> torch.Tensor:
            output = torch.zeros(6, dtype=dtype)
            dist.reduce_scatter_tensor(output, contents(dtype, (6 * SIZE,)), op=op, group=group)
            return output

        for row in (all_reduce, reduce, reduce_scatter):
            yield f"{row.__name__} {op} of {dtype}", row


@case
def every_reduction_of_every_type_is_gloos() -> None:
    compare(reduction_rows())


# ---- data movement ----------------------------------------------------------------------------------------------


def all_gather(group: Any, mine: torch.Tensor) -> Any:
    outputs = [torch.zeros_like(mine) for _ in range(SIZE)]
    dist.all_gather(outputs, mine, group=group)
    return outputs


def all_gather_into_tensor(group: Any, mine: torch.Tensor) -> Any:
    output = torch.zeros((SIZE * mine.shape[0], *mine.shape[1:]) if mine.dim() else SIZE, dtype=mine.dtype)
    dist.all_gather_into_tensor(output, mine, group=group)
    return output


def broadcast(group: Any, mine: torch.Tensor) -> Any:
    dist.broadcast(mine, 1, group=group)
    return mine


def gather(group: Any, mine: torch.Tensor) -> Any:
    outputs = [torch.zeros_like(mine) for _ in range(SIZE)] if RANK == 0 else None
    dist.gather(mine, outputs, 0, group=group)
    return outputs or []


def scatter(group: Any, mine: torch.Tensor) -> Any:
    output = torch.zeros_like(mine)
    dist.scatter(output, [mine] * SIZE if RANK == 1 else None, 1, group=group)
    return output


def all_to_all(group: Any, mine: torch.Tensor) -> Any:
    outputs = [torch.zeros_like(mine) for _ in range(SIZE)]
    dist.all_to_all(outputs, [mine] * SIZE, group=group)
    return outputs


def all_to_all_single(group: Any, mine: torch.Tensor) -> Any:
    output = torch.zeros((SIZE, *mine.shape), dtype=mine.dtype)
    dist.all_to_all_single(output, torch.stack([mine] * SIZE), group=group)
    return output


def message(group: Any, mine: torch.Tensor) -> Any:
    box = torch.zeros_like(mine)
    works = [dist.irecv(box, 1 - RANK, group=group, tag=4), dist.isend(mine, 1 - RANK, group=group, tag=4)]
    for work in works:
        work.wait()
    return box


MOVES = (all_gather, all_gather_into_tensor, broadcast, gather, scatter, all_to_all, all_to_all_single, message)
LAYOUTS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "plain": contents,
    "a scalar": lambda dtype: contents(dtype, ()),
    "nothing": lambda dtype: contents(dtype, (0, 3)),
    "transposed": lambda dtype: contents(dtype, (2, 3)).t(),
    "every other": lambda dtype: contents(dtype, (12,))[::2],
    "from the middle": lambda dtype: contents(dtype, (12,))[3:9],
    "of a channel": lambda dtype: contents(dtype, (2, 3, 2, 2)).to(memory_format=torch.channels_last),
    "that learns": lambda dtype: contents(dtype).requires_grad_(dtype.is_floating_point or dtype.is_complex),
}


if HOW == "adopt":  # adopted groups go on over gloo
    for scattered in ("transposed", "every other", "of a channel"):
        del LAYOUTS[scattered]


def moved_rows() -> Iterator[tuple[str, Row]]:
    kinds = [(dtype, "plain") for dtype in MOVED]
    kinds += [(dtype, layout) for dtype in (torch.float32, torch.complex64) for layout in LAYOUTS]
    for move, (dtype, layout) in itertools.product(MOVES, kinds):

        def row(group: Any, move: Any = move, dtype: torch.dtype = dtype, layout: str = layout) -> Any:
            with torch.no_grad():
                mine = LAYOUTS[layout](dtype)
                return move(group, mine if group is None else flat(mine))

        yield f"{move.__name__} of {dtype}, {layout}", row


@case
def everything_of_every_type_and_layout_is_moved_as_gloo_does() -> None:
    compare(moved_rows())


def reduced_layouts() -> Iterator[tuple[str, Row]]:
    for dtype, layout in itertools.product((torch.float32, torch.int64, torch.complex64), LAYOUTS):

        def row(group: Any, dtype: torch.dtype = dtype, layout: str = layout) -> Any:
            tensor = LAYOUTS[layout](dtype)
            tensor = tensor if group is None else flat(tensor)
            with torch.no_grad():
                dist.all_reduce(tensor, group=group)
            return tensor

        yield f"all_reduce of {dtype}, {layout}", row


@case
def every_layout_is_reduced_as_gloo_does() -> None:
    compare(reduced_layouts())


# ---- sparse -----------------------------------------------------------------------------------------------------


def sparse_rows() -> Iterator[tuple[str, Row]]:
    def coo(entries: list[int], dtype: torch.dtype = torch.float32, width: int = 0) -> torch.Tensor:
        values = contents(dtype, (len(entries), width) if width else (len(entries),))
        return torch.sparse_coo_tensor([entries], values, (5, width) if width else (5,))

    made: dict[str, Callable[[], torch.Tensor]] = {
        "one entry": lambda: coo([RANK]),
        "the same entry twice": lambda: coo([RANK, RANK]),
        "entries of rows": lambda: coo([0, RANK + 1], width=3),
        "none": lambda: coo([]),
        "none on one rank": lambda: coo([1, 2] if RANK else []),
        **{f"of {dtype}": functools.partial(coo, [1, 3], dtype) for dtype in DTYPES},
        "rows (csr)": lambda: torch.eye(3).to_sparse_csr(),
    }
    for name, make in made.items():

        def row(group: Any, make: Callable[[], torch.Tensor] = make) -> torch.Tensor:
            tensor = make()
            dist.all_reduce(tensor, group=group)
            return tensor

        yield f"all_reduce of a sparse tensor, {name}", row

    def largest(group: Any) -> torch.Tensor:
        tensor = coo([RANK])
        dist.all_reduce(tensor, op=OPS.MAX, group=group)
        return tensor

    yield "MAX of a sparse tensor", largest


@case
def sparse_tensors_are_reduced_as_gloo_does() -> None:
    compare(sparse_rows())


# ---- wrong calls ------------------------------------------------------------------------------------------------


def wrong_rows() -> Iterator[tuple[str, Row]]:
    zeros = torch.zeros
    yield "all_gather of other types", lambda group: all_gather_of(group, [zeros(2, dtype=torch.int64)] * SIZE)
    yield "all_gather of too few", lambda group: all_gather_of(group, [zeros(2)])
    yield "no such root", lambda group: dist.broadcast(zeros(2), 77, group=group)
    yield "into a wrong size", lambda group: dist.all_gather_into_tensor(zeros(3), zeros(2), group=group)
    yield "scatter by all", lambda group: dist.scatter(zeros(2), [zeros(2)] * (SIZE + 1), RANK, group=group)
    yield "a message to oneself", lambda group: dist.send(zeros(2), RANK, group=group)
    yield (
        "quantized",
        lambda group: dist.all_reduce(torch.quantize_per_tensor(zeros(3), 1, 0, torch.qint8), group=group),
    )
    for count in range(5):  # these rows work: the refused calls have left both groups as they were
        yield f"what works, {count}", lambda group, count=count: all_gather(group, torch.full((2,), float(count)))


def all_gather_of(group: Any, outputs: list[torch.Tensor]) -> None:
    dist.all_gather(outputs, torch.zeros(2), group=group)


@case
def what_gloo_refuses_before_anything_is_sent_leaves_the_group_well() -> None:
    compare(wrong_rows())
