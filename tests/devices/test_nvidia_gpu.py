"""Tests the events of a real NVIDIA GPU: a kernel that writes where there is no memory is reported with its XID.

Such a kernel ends its own process only. Nothing is asked of the GPU that would change it. Without a GPU,
tests/devices/test_sources.py tests the source against recorded answers.
"""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from taskd.core.types import DeviceKind
from taskd.devices.choice import opened
from tests.patience import PATIENCE_S

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

FAULT = """
import torch
text = 'extern "C" __global__ void astray(float* memory) { memory[1ull << 40] = 1; }'
kernel = torch.cuda._compile_kernel(text, "astray")
kernel(grid=(1, 1, 1), block=(1, 1, 1), args=(torch.zeros(1, device="cuda"),))
torch.cuda.synchronize()
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
def test_a_kernel_that_goes_astray_is_reported() -> None:
    source = opened("nvidia")
    try:
        source.look(0)
        ran = subprocess.run([sys.executable, "-c", FAULT], capture_output=True, text=True, timeout=PATIENCE_S)
        assert "illegal memory access" in ran.stderr, ran.stdout + ran.stderr
        found, deadline = [], time.monotonic() + PATIENCE_S
        while not found and time.monotonic() < deadline:
            found = [event for event in source.look(1.0) if event.kind is DeviceKind.XID]
        assert found and found[0].device == 0 and found[0].code in {13, 31}, found
        assert found[0].uuid.startswith("GPU-") and "XID" in found[0].text, found
        print(found)
    finally:
        source.close()
