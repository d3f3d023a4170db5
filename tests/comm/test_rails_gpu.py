"""Tests gloo's name with tensors on a GPU: over rails they go through memory of the CPU, with the same results.

Scripts that are tried out on one GPU often ask for gloo, since NCCL wants a GPU for each rank. One GPU is enough.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

PROGRAM = """
import sys
import torch, torch.distributed as dist
from taskd.comm import guard

rank, other, device = int(sys.argv[1]), 1 - int(sys.argv[1]), torch.device("cuda", 0)
torch.cuda.set_device(device)
guard.install(hostname="127.0.0.1")
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)

def filled(value, count=5):
    return torch.full((count,), float(value), device=device)

def check(name, found, wanted):
    assert found.device == device and found.tolist() == wanted, (name, found, wanted)

side = torch.cuda.Stream()
with torch.cuda.stream(side):
    torch.cuda._sleep(50_000_000)  # the operation must see what is still being computed on this stream
    one = filled(rank + 1)
    dist.all_reduce(one)
    check("all_reduce", one + 1, [4.0] * 5)
one = filled(rank + 1, 6)[::2]
dist.all_reduce(one, dist.ReduceOp.MAX)
check("all_reduce of a slice", one, [2.0] * 3)
one = filled(rank)
dist.broadcast(one, 1)
check("broadcast", one, [1.0] * 5)
one = filled(rank + 1)
dist.reduce(one, 0)
check("reduce", one, [3.0 if rank == 0 else 2.0] * 5)
parts = [filled(-1), filled(-1)]
dist.all_gather(parts, filled(rank))
check("all_gather", torch.cat(parts), [0.0] * 5 + [1.0] * 5)
whole = filled(-1, 10)
dist.all_gather_into_tensor(whole, filled(rank))
check("all_gather_into_tensor", whole, [0.0] * 5 + [1.0] * 5)
part = filled(-1)
dist.reduce_scatter_tensor(part, torch.arange(10.0, device=device))
check("reduce_scatter_tensor", part, [2.0 * (5 * rank + i) for i in range(5)])
swapped = filled(-1, 4)
dist.all_to_all_single(swapped, torch.arange(4.0, device=device) + 10 * rank)
check("all_to_all_single", swapped, [2.0 * rank, 2.0 * rank + 1, 10 + 2.0 * rank, 11 + 2.0 * rank])
box, works = filled(-1), []
works = [dist.isend(filled(rank), other), dist.irecv(box, other)]
for work in works:
    work.wait()
check("messages", box, [float(other)] * 5)
gathered = [filled(-1), filled(-1)] if rank == 0 else None
dist.gather(filled(rank), gathered)
part = filled(-1)
dist.scatter(part, [filled(7), filled(8)] if rank == 0 else None)
check("scatter", part, [7.0 + rank] * 5)
sparse = torch.sparse_coo_tensor([[rank]], [1.0], (2,), device=device)
dist.all_reduce(sparse)
check("sparse", sparse.to_dense(), [1.0, 1.0])
objects = [None, None]
dist.all_gather_object(objects, {"rank": rank})
assert objects == [{"rank": 0}, {"rank": 1}]
future = dist.all_reduce(filled(1), async_op=True).get_future()
check("future", future.wait()[0], [2.0] * 5)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_tensors_on_a_gpu_go_over_rails(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(said)
