"""The two NICs that a process over HCCL can send on: its NPU's own, and the one of the NPU beside it on the same board.

HCCL reports success for a switch that did nothing, and a process cannot read from it how many bytes were sent. The
driver counts them: `hccn_tool -i DEVICE -stat -g` prints what the NIC of a device has sent. This tool is a program that
must be started, so it is only called when a switch must be proved. Where it is missing nothing is counted, and a switch
stays `asked`. The counts are kept where this node's agent reads them. So the two NICs are rails like any other:
operators see and switch them, and the manager sees bytes flow on a NIC that was put back. This module does NOT decide
what the bytes prove (adapter.judge). None of this was run on an NPU.
"""

from __future__ import annotations

import re
import subprocess

from taskd import _native
from taskd.comm.adapter import Traffic
from taskd.core.types import RailState

OWN = "npu"
BESIDE = "npu-beside"
EVERYBODY = "*"
"""The peer of both NICs in reports: a NIC is chosen for all peers at once."""
TOOL = "hccn_tool"
TOOL_SECONDS = 2.0
_SENT = re.compile(r"\bmac_tx_total_oct_num\s*[:=]\s*(\d+)")


def sent(device: int) -> int | None:
    """Bytes that the NIC of this device has sent since it was started; None if they cannot be read."""
    command = [TOOL, "-i", str(device), "-stat", "-g"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _SENT.search(said.stdout)
    return int(found.group(1)) if said.returncode == 0 and found else None


def traffic(device: int) -> Traffic:
    """Bytes that each of the two NICs has sent, without a NIC whose count cannot be read."""
    both = {OWN: sent(device), BESIDE: sent(device ^ 1)}
    return {name: count for name, count in both.items() if count is not None}


class Counts:
    """The bytes of the two NICs at the last look, in memory that the agent of this node reads. Raises OSError."""

    def __init__(self) -> None:
        self._file = _native.RailCounters(2)
        self._lines = {name: self._file.open(name, -1, EVERYBODY, 1) for name in (OWN, BESIDE)}
        self._last: dict[str, int] = {}
        for line in self._lines.values():
            line.set_state(RailState.UP)

    @property
    def fd(self) -> int:
        """The descriptor of the memory file; -1: there is no file that other processes could read."""
        return self._file.fd

    def note(self, now: Traffic) -> None:
        """Add what was sent since the last look."""
        for name, count in now.items():
            self._lines[name].count(bytes_out=max(count - self._last.get(name, count), 0))
            self._last[name] = count

    def prove_anew(self) -> None:
        """Note that the other NIC is in use from now on, so that its bytes must be seen first."""
        for line in self._lines.values():
            line.prove_anew()
