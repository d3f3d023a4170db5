"""The work by which a device is tested: products of matrices whose results are known, and copies in its memory.

The entries are sums of small whole numbers, A[i,k] = u[i] + v[k] and B[k,j] = x[k] + y[j]. So the whole product follows
from four rows of numbers, and who checks it needs no product of its own. The entries are exact in every format in which
a device may multiply, and all sums are exact in float32. So a result is right or wrong, and never nearly right.

A batch of products takes long enough to show a processor that is shared or held back.
"""

from __future__ import annotations

import os
from functools import lru_cache

import torch

from taskd import _native
from taskd.check.sizes import ACCELERATOR, PROCESSOR
from taskd.core.check.facts import Way

_BELOW = 8
_FACTOR, _STEP = 6364136223846793005, 1442695040888963407
_WORD = (1 << 63) - 1
_EXCHANGED = 1 << 16


class Device:
    """One device of this node, or its processors."""

    def __init__(self, name: str) -> None:
        """`name`: as torch calls it, like cpu, cuda:1 or npu:0."""
        self.device = torch.device(name)
        self.size = PROCESSOR if self.device.type == "cpu" else ACCELERATOR
        self._block = torch.zeros(self.size.memory, dtype=torch.uint8, device=self.device)
        self._copy = torch.empty_like(self._block)

    def compute(self, seed: int, threads: int = 1) -> int:
        """Compute a batch of products. Return the digest of the last one. `threads`: of a processor. One is disturbed
        least by others, so times are those of one."""
        if self.device.type == "cpu":
            torch.set_num_threads(threads)
        u, v, x, y = (row.to(self.device, torch.float32) for row in _rows(seed, self.size.product))
        left, right = u[:, None] + v, x[:, None] + y
        result = torch.empty_like(left)
        for _ in range(self.size.batch):
            torch.mm(left, right, out=result)
        return _digest(result)

    def copy(self) -> None:
        """Copy a block of memory within the device."""
        self._copy.copy_(self._block)
        if self.device.type != "cpu":
            getattr(torch, self.device.type).synchronize(self.device)

    def exchange(self, other: Device) -> Way:
        """Send numbers to another device of this node and back."""
        sent = torch.arange(_EXCHANGED, dtype=torch.int32, device=self.device)
        try:
            back = sent.to(other.device).to(self.device)
        except RuntimeError:
            return Way.FAILED
        return Way.OK if torch.equal(sent, back) else Way.CORRUPT


def devices() -> list[Device]:
    """The devices of this node on which a job would train."""
    if torch.cuda.is_available():
        torch.backends.cuda.matmul.allow_tf32 = True  # the units that training uses; the entries are exact there
        return [Device(f"cuda:{at}") for at in range(torch.cuda.device_count())]
    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        return [Device(f"npu:{at}") for at in range(npu.device_count())]
    return [Device("cpu")]


def processors() -> int:
    """Return how many threads compute at once on this node's processors."""
    return len(os.sched_getaffinity(0))


@lru_cache(maxsize=16)
def expected(seed: int, count: int) -> int:
    """Return the digest of the right product of matrices with so many rows."""
    u, v, x, y = _rows(seed, count)
    result = u[:, None] * x.sum() + count * u[:, None] * y + (v * x).sum() + y * v.sum()
    return _digest(result)


def _rows(seed: int, count: int) -> list[torch.Tensor]:
    """Return four rows of whole numbers below 8, which are the same on every machine."""
    numbers = torch.arange(1, 4 * count + 1, dtype=torch.int64) * _FACTOR + (seed * _STEP & _WORD)
    return [*((numbers >> 33) & (_BELOW - 1)).reshape(4, count)]


def _digest(result: torch.Tensor) -> int:
    host = result.to("cpu", torch.int32).contiguous()
    [digest] = _native.digests([(host.data_ptr(), host.nbytes)])
    return digest
