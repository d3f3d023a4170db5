"""The two NICs that a process over HCCL can send on: its NPU's own, and the one of the NPU beside it on the same board.

HCCL reports success for a switch that did nothing, and counts no bytes that a process could read. The driver does:
`hccn_tool -i DEVICE -stat -g` says what the NIC of a device has sent. It is asked when a switch has to be proved, and
never otherwise, for it is a program that has to be started. Where it is missing nothing is counted, and a switch stays
`asked`. It does NOT decide what the bytes prove (adapter.judge). None of this was run on an NPU.
"""

from __future__ import annotations

import re
import subprocess

from taskd.comm.adapter import Traffic

OWN = "npu"
BESIDE = "npu beside"
TOOL = "hccn_tool"
TOOL_SECONDS = 2.0
_SENT = re.compile(r"\bmac_tx_total_oct_num\s*[:=]\s*(\d+)")


def sent(device: int) -> int | None:
    """Bytes that the NIC of this device has sent since it was started; None: nobody can tell."""
    command = [TOOL, "-i", str(device), "-stat", "-g"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _SENT.search(said.stdout)
    return int(found.group(1)) if said.returncode == 0 and found else None


def traffic(device: int) -> Traffic:
    """What each of the two has sent, as far as somebody counts it."""
    both = {OWN: sent(device), BESIDE: sent(device ^ 1)}
    return {name: count for name, count in both.items() if count is not None}
