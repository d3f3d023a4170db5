"""NCCL on a real GPU: a group is aborted and made anew in the same process, and an error does not end it.

Skipped with a sentence where there is no GPU. One GPU is enough: two ranks may not share one, so the peer that never
comes is a second rank that is announced and not started.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

PROGRAM = """
import os, sys
from datetime import timedelta
from taskd.comm import nccl
set_here = nccl.prepare(os.environ, nccl.version())
import torch, torch.distributed as dist
torch.cuda.set_device(0)
meet = dict(identity="0", members=[0])
within = timedelta(seconds=20)
store = dist.HashStore()

def group(epoch, size, wait=within):
    where = dist.PrefixStore(f"epoch{epoch}", store)
    return nccl.make_inner(where, 0, size, wait, epoch=epoch, **meet).backend

def sums(backend):
    tensor = torch.full((1 << 20,), 3.0, device="cuda")
    backend.allreduce([tensor]).wait()
    torch.cuda.synchronize()
    return tensor[0].item()

first = group(1, 1)
assert sums(first) == 3.0 and nccl.probe(first) is None
nccl.abort([first], "a test")
second = nccl.rebuild(first, dist.PrefixStore("epoch2", store), 0, 1, within, epoch=2, **meet).backend
assert sums(second) == 3.0, "made anew in the same process"
third = group(3, 2, timedelta(seconds=3))
try:
    third.allreduce([torch.ones(4, device="cuda")]).wait()
    torch.cuda.synchronize()
    sys.exit("the peer that never came was not missed")
except RuntimeError as error:
    print("told:", nccl.classify(error).value, str(error)[:200])
assert sums(second) == 3.0, "the process and its other group go on"
assert nccl.switch_rail(second, "a", False).outcome.value == "unsupported"
print("version", nccl.version(), "set", sorted(set_here))
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here: NCCL cannot be shown")
@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="this torch was built without NCCL")
def test_abort_and_make_anew_in_one_process() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=180)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "told:" in ran.stdout, ran.stdout
