"""Tests NCCL on a real GPU: a guarded group is aborted and rebuilt in the same process, and an error does not end it.

One GPU is enough. Two ranks may not share a GPU, so the peer that never comes is a second rank that is announced but
not started. Without a GPU, tests/train/test_guard_adapters.py tests everything except the device.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import PATIENCE_S

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

PROGRAM = """
import os, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from taskd import _c10d
from taskd.comm import guard, nccl
from taskd.errors import StepAbandoned

control = _c10d.control
torch.cuda.set_device(0)
guard.install()
store = dist.HashStore()
limit = timedelta(seconds=60)
dist.init_process_group("cpu:gloo,cuda:nccl", store=store, rank=0, world_size=1, timeout=limit)
world = dist.group.WORLD._get_backend(torch.device("cuda"))
assert type(world) is _c10d.Guard and world.backend == "nccl" and world.stream_ordered
assert os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"

def sums():
    tensor = torch.full((1 << 20,), 3.0, device="cuda")
    dist.all_reduce(tensor)
    return tensor[0].item() == 3.0

model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
def step():
    model.zero_grad()
    model(torch.ones(4, 64, device="cuda")).sum().backward()
    return model.module.weight.grad.sum().item()

def heal():
    epoch = control.epoch + 1
    control.drain(epoch)
    guard.end_inner_groups(epoch, "a test", on_devices_alone=True)
    try:
        dist.all_reduce(torch.ones(4, device="cuda"))
        sys.exit("a step that is given up begins an operation")
    except StepAbandoned:
        pass
    made = guard.rebuild(epoch, dist.PrefixStore("heal", store))
    control.resume(epoch)
    return made

assert sums() and guard.probe() == []
wanted = step()
for _ in range(3):
    assert heal() == guard.groups()
    assert sums() and step() == wanted, "made anew in the same process, under the same DDP"

# A peer that never comes: NCCL waits for it without a limit, until its communicator is ended from another thread.
apart = dist.PrefixStore("two", store)
inner = nccl.make_inner(apart, 0, 2, limit, epoch=9, identity="0@0-1", members=[0, 1])
lonely = _c10d.Guard(0, 2, inner.backend, [0, 1], 0, timeout=limit, backend="nccl", stream_ordered=True)
del inner
control.attached = True

def end():
    while not lonely.handing_over:
        time.sleep(0.01)
    time.sleep(1)  # NCCL tells nobody that it has begun to listen
    control.drain(control.epoch + 1)
    guard.end_inner_groups(control.epoch + 1, "a test", on_devices_alone=True)

ending = threading.Thread(target=end)
ending.start()
try:
    lonely.allreduce([torch.ones(4, device="cuda")]).wait()
    sys.exit("the peer that never came was not missed")
except StepAbandoned:
    print("told: the step is given up")
ending.join()
control.attached = False
del lonely
guard.rebuild(control.epoch + 1, dist.PrefixStore("after", store))
control.resume(control.epoch + 1)
assert sums() and step() == wanted, "the process and its other groups go on"
assert nccl.switch_rail("a", False).outcome.value == "unsupported"
dist.destroy_process_group()
assert guard.groups() == []
print("version", nccl.version())
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here: NCCL cannot be shown")
@pytest.mark.skipif(not torch.distributed.is_nccl_available(), reason="this torch was built without NCCL")
def test_a_guarded_group_is_aborted_and_made_anew_in_one_process() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "told:" in ran.stdout, ran.stdout
