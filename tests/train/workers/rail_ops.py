"""Draws operations by seed and compares the rail backend with gloo and with a plain reduction in the order of ranks.

Arguments: RANK SIZE FOLDER SEED ROUNDS. Every rank draws the same operations and its own contents. A result over rails
must equal the reference bit for bit. Some are also compared with gloo's result: exactly if data is only moved, else
nearly.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taskd.comm import rail
from tests.patience import PATIENCE

RANK, SIZE, FOLDER = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
SEED, ROUNDS = int(sys.argv[4]), int(sys.argv[5])
OPS = dist.ReduceOp
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
SIZES = (0, 1, 2, 3, 7, 64, 1000, 16_383, 16_384, 16_385, 40_000, 300_000, 1_000_003)
draw = random.Random(SEED)
gloo: Any = None


def contents(shape: tuple[int, ...], dtype: torch.dtype, salt: int, rank: int) -> torch.Tensor:
    """Return the input of a rank. Every rank can compute the inputs of all ranks."""
    generator = torch.Generator().manual_seed(hash((SEED, salt, rank)) % 2**31)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    if dtype.is_complex:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0 if dtype == torch.uint8 else -50, 50, shape, generator=generator).to(dtype)


def everybody(shape: tuple[int, ...], dtype: torch.dtype, salt: int) -> list[torch.Tensor]:
    return [contents(shape, dtype, salt, rank) for rank in range(SIZE)]


def reduced(tensors: list[torch.Tensor], op: Any) -> torch.Tensor:
    """Reduce the tensors one after the other in rank order. 16-bit floats are computed as float32 and rounded once."""
    steps: dict[Any, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        OPS.SUM: torch.add,
        OPS.AVG: torch.add,
        OPS.PRODUCT: torch.mul,
        OPS.MIN: torch.minimum,
        OPS.MAX: torch.maximum,
        OPS.BAND: torch.bitwise_and,
        OPS.BOR: torch.bitwise_or,
        OPS.BXOR: torch.bitwise_xor,
    }
    dtype = tensors[0].dtype
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    result = tensors[0].to(wide, copy=True)
    for tensor in tensors[1:]:
        result = steps[op](result, tensor.to(wide))
    return (result / SIZE if op == OPS.AVG else result).to(dtype)


def same(found: torch.Tensor, wanted: torch.Tensor, what: Any) -> None:
    assert found.dtype == wanted.dtype and found.shape == wanted.shape, (what, found.dtype, wanted.dtype)
    flat = found.detach().contiguous(), wanted.detach().contiguous()
    if found.numel() and not torch.equal(flat[0].view(torch.uint8), flat[1].view(torch.uint8)):
        different = (flat[0] != flat[1]).flatten().nonzero().flatten()[:5].tolist()
        at = [(i, flat[0].flatten()[i].item(), flat[1].flatten()[i].item()) for i in different]
        raise AssertionError(f"{what}: differs, for instance {at}")


def shape_of(count: int) -> tuple[int, ...]:
    return (count,) if draw.random() < 0.7 or count % 2 else (2, count // 2)


def laid_out(tensor: torch.Tensor, how: int) -> torch.Tensor:
    """Return the same elements, for some values of `how` in memory that is not contiguous."""
    if how == 1 and tensor.dim() == 2:
        return tensor.t().contiguous().t()
    if how == 2:
        return torch.stack([tensor, tensor], -1)[..., 0]
    return tensor.clone()


def arithmetic() -> tuple[torch.dtype, Any]:
    if draw.random() < 0.6:
        return draw.choice(FLOATS), draw.choice([OPS.SUM, OPS.AVG, OPS.PRODUCT, OPS.MIN, OPS.MAX])
    if draw.random() < 0.15:
        return torch.complex64, OPS.SUM
    return draw.choice(INTEGERS), draw.choice([OPS.SUM, OPS.PRODUCT, OPS.MIN, OPS.MAX, OPS.BAND, OPS.BOR, OPS.BXOR])


def all_reduce(salt: int) -> str:
    (dtype, op), shape, how = arithmetic(), shape_of(draw.choice(SIZES)), draw.randrange(4)
    mine = laid_out(contents(shape, dtype, salt, RANK), how)
    dist.all_reduce(mine, op=op)
    same(mine, reduced(everybody(shape, dtype, salt), op), ("all_reduce", dtype, op, shape, how))
    if dtype in (torch.float32, torch.int64) and op == OPS.SUM:
        theirs = contents(shape, dtype, salt, RANK)
        dist.all_reduce(theirs, op=op, group=gloo)
        assert torch.allclose(theirs, mine, rtol=1e-4, atol=1e-4), "gloo says something else"
    return f"{dtype} {op} {shape}"


def reduce(salt: int) -> str:
    (dtype, op), shape, root = arithmetic(), shape_of(draw.choice(SIZES)), draw.randrange(SIZE)
    mine = contents(shape, dtype, salt, RANK)
    dist.reduce(mine, root, op=op)
    wanted = reduced(everybody(shape, dtype, salt), op) if root == RANK else contents(shape, dtype, salt, RANK)
    same(mine, wanted, ("reduce", dtype, op, shape))
    return f"{dtype} {op} {shape}"


def reduce_scatter(salt: int) -> str:
    (dtype, op), shape, flat = arithmetic(), shape_of(draw.choice(SIZES)), draw.random() < 0.5
    inputs = [contents(shape, dtype, salt + part, RANK) for part in range(SIZE)]
    output = torch.empty(shape, dtype=dtype)
    if flat:
        dist.reduce_scatter_tensor(output.view(-1), torch.cat([one.flatten() for one in inputs]), op=op)
    else:
        dist.reduce_scatter(output, inputs, op=op)
    same(output, reduced(everybody(shape, dtype, salt + RANK), op), ("reduce_scatter", dtype, op, shape, flat))
    return f"{dtype} {op} {shape}"


def anything() -> torch.dtype:
    return draw.choice((*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.float8_e4m3fn))


def moved(shape: tuple[int, ...], dtype: torch.dtype, salt: int) -> list[torch.Tensor]:
    if dtype == torch.float8_e4m3fn:
        return [contents(shape, torch.uint8, salt, rank).view(dtype) for rank in range(SIZE)]
    return everybody(shape, dtype, salt)


def all_gather(salt: int) -> str:
    dtype, shape, how = anything(), shape_of(draw.choice(SIZES)), draw.randrange(4)
    wanted = moved(shape, dtype, salt)
    if how == 0:
        whole = torch.empty((SIZE * wanted[0].numel(),), dtype=dtype)
        part = whole.view(SIZE, -1)[RANK] if wanted[0].numel() else whole
        part.copy_(wanted[RANK].flatten())
        dist.all_gather_into_tensor(whole, part)  # in place: the input is its own part of the output
        found = [one.view(shape) for one in whole.chunk(SIZE)] if wanted[0].numel() else wanted
    else:
        found = [laid_out(torch.zeros_like(one), how) for one in wanted]
        dist.all_gather(found, laid_out(wanted[RANK], how))
    for one, other in zip(found, wanted, strict=True):
        same(one, other, ("all_gather", dtype, shape, how))
    return f"{dtype} {shape}"


def broadcast(salt: int) -> str:
    dtype, shape, root, how = anything(), shape_of(draw.choice(SIZES)), draw.randrange(SIZE), draw.randrange(4)
    wanted = moved(shape, dtype, salt)
    mine = laid_out(wanted[RANK], how)
    dist.broadcast(mine, root)
    same(mine, wanted[root], ("broadcast", dtype, shape))
    return f"{dtype} {shape}"


def gather_and_scatter(salt: int) -> str:
    dtype, shape, root = anything(), shape_of(draw.choice(SIZES)), draw.randrange(SIZE)
    wanted = moved(shape, dtype, salt)
    found = [torch.zeros_like(one) for one in wanted] if root == RANK else None
    dist.gather(wanted[RANK], found, root)
    for one, other in zip(found or [], wanted, strict=False):
        same(one, other, ("gather", dtype, shape))
    mine = torch.zeros_like(wanted[0])
    dist.scatter(mine, wanted if root == RANK else None, root)
    same(mine, wanted[RANK], ("scatter", dtype, shape))
    return f"{dtype} {shape}"


def all_to_all(salt: int) -> str:
    dtype = draw.choice((torch.float32, torch.int64, torch.bfloat16))
    rows = [[draw.choice((0, 1, 5, 5000)) for _ in range(SIZE)] for _ in range(SIZE)]  # by sender and receiver
    width = draw.choice((1, 7))
    inputs = [contents((sum(rows[rank]), width), dtype, salt, rank) for rank in range(SIZE)]
    parts = [inputs[rank].split(rows[rank])[RANK] for rank in range(SIZE)]
    splits = [rows[rank][RANK] for rank in range(SIZE)]
    output = torch.zeros((sum(splits), width), dtype=dtype)
    dist.all_to_all_single(output, inputs[RANK], splits, rows[RANK])
    same(output, torch.cat(parts), ("all_to_all_single", dtype, rows))
    outputs = [torch.zeros_like(part) for part in parts]
    dist.all_to_all(outputs, list(inputs[RANK].split(rows[RANK])))
    for one, other in zip(outputs, parts, strict=True):
        same(one, other, ("all_to_all", dtype, rows))
    theirs = torch.zeros_like(output)
    dist.all_to_all_single(theirs, inputs[RANK], splits, rows[RANK], group=gloo)
    same(output, theirs, "gloo's all_to_all_single")
    return f"{dtype} {rows}"


def messages(salt: int) -> str:
    """Send several messages at once between all pairs. Those of one pair and tag keep their order."""
    dtype, shape, tags = draw.choice(FLOATS), shape_of(draw.choice(SIZES)), draw.randrange(1, 4)
    works, boxes = [], []
    for number in range(3):
        for peer in range(SIZE):
            if peer == RANK:
                continue
            tag = number % tags
            box = torch.empty(shape, dtype=dtype)
            boxes.append((box, contents(shape, dtype, salt + number, peer)))
            works.append(dist.irecv(box, peer, tag=tag))
            works.append(dist.isend(contents(shape, dtype, salt + number, RANK), peer, tag=tag))
    for work in works:
        work.wait()
    for found, wanted in boxes:
        same(found, wanted, ("messages", dtype, shape))
    return f"{dtype} {shape}"


def several_at_once(salt: int) -> str:
    """Run operations of several groups together and wait in another order. Some works are dropped at once."""
    count = draw.choice(SIZES)
    tensors = [contents((count,), torch.float32, salt + i, RANK) for i in range(6)]
    order = draw.sample(range(6), 6)
    works = {i: dist.all_reduce(tensors[i], group=halves if i % 2 else None, async_op=True) for i in range(6)}
    futures = [works[0].get_future(), works[3].get_future().then(lambda done: done.value()[0].clone())]
    for i in order:
        works.pop(i).wait()
    futures[0].wait()
    for i in range(6):
        ranks = pair if i % 2 else range(SIZE)
        wanted = reduced([contents((count,), torch.float32, salt + i, rank) for rank in ranks], OPS.SUM)
        same(tensors[i], wanted, ("several", i, count))
    same(futures[1].wait(), tensors[3], "a chained future")
    return str(count)


def coalesced(salt: int) -> str:
    sizes = [draw.choice(SIZES[:-1]) for _ in range(draw.randrange(1, 8))]
    tensors = [contents((size,), torch.float32, salt + i, RANK) for i, size in enumerate(sizes)]
    dist.all_reduce_coalesced(tensors)
    for i, size in enumerate(sizes):
        same(tensors[i], reduced(everybody((size,), torch.float32, salt + i), OPS.SUM), ("coalesced", size))
    return str(sizes)


def sparse(salt: int) -> str:
    entries = [draw.choice((0, 1, 5, 3000)) for _ in range(SIZE)]
    generators = [torch.Generator().manual_seed(hash((SEED, salt, rank)) % 2**31) for rank in range(SIZE)]
    brought = [
        torch.sparse_coo_tensor(
            torch.randint(0, 500, (1, count), generator=generator),
            torch.randn((count, 4), generator=generator),
            (500, 4),
        )
        for count, generator in zip(entries, generators, strict=True)
    ]
    mine = brought[RANK].clone()
    dist.all_reduce(mine)
    wanted = sum((one.to_dense() for one in brought[1:]), brought[0].to_dense())
    assert torch.allclose(mine.to_dense(), wanted, rtol=1e-5, atol=1e-5), "sparse"
    return str(entries)


def main() -> None:
    global gloo, halves, pair
    torch.set_num_threads(1)
    rail.register()
    dist.init_process_group(
        "cpu:rail",
        init_method=f"file://{FOLDER}/store",
        rank=RANK,
        world_size=SIZE,
        timeout=PATIENCE,
    )
    gloo = dist.new_group(backend="gloo")
    pairs = [[first, first + 1] for first in range(0, SIZE - 1, 2)]
    groups = [dist.new_group(ranks, backend="cpu:rail") for ranks in pairs]
    pair, halves = pairs[RANK // 2], groups[RANK // 2]
    kinds = [all_reduce, reduce, reduce_scatter, all_gather, broadcast, gather_and_scatter, all_to_all, messages]
    kinds += [several_at_once, coalesced, sparse]
    for turn in range(ROUNDS):
        kind = kinds[turn] if turn < len(kinds) else draw.choice(kinds)
        try:
            kind(turn * 100)
        except BaseException:
            print(json.dumps({"turn": turn, "kind": kind.__name__, "seed": SEED}), flush=True)
            raise
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps({"rounds": ROUNDS}), flush=True)


if __name__ == "__main__":
    main()
