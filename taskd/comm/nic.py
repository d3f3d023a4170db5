"""The two NICs that a process over HCCL can send on: its NPU's own, and the one of the NPU beside it on the same board.

HCCL reports success for a switch that did nothing, and counts no bytes that a process could read. The driver does:
`hccn_tool -i DEVICE -stat -g` says what the NIC of a device has sent. It is asked when a switch has to be proved, and
never otherwise, for it is a program that has to be started. Where it is missing nothing is counted, and a switch stays
`asked`. What was counted is kept where this node's agent reads it, so that the two are rails like any other: operators
see and order them, and the manager sees bytes flow on a NIC that was put back. It does NOT decide what the bytes prove
(adapter.judge). None of this was run on an NPU.
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
"""The peer of both, as far as reports go: a NIC is chosen for all peers at once."""
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


class Counts:
    """What the two have sent, as far as it was asked, in memory that the agent of this node reads. Raises OSError."""

    def __init__(self) -> None:
        self._file = _native.RailCounters(2)
        self._lines = {name: self._file.open(name, -1, EVERYBODY, 1) for name in (OWN, BESIDE)}
        self._last: dict[str, int] = {}
        for line in self._lines.values():
            line.set_state(RailState.UP)

    @property
    def fd(self) -> int:
        """Of the memory file; -1: there is none that others could read."""
        return self._file.fd

    def note(self, now: Traffic) -> None:
        """Add what was sent since the last look."""
        for name, count in now.items():
            self._lines[name].count(bytes_out=max(count - self._last.get(name, count), 0))
            self._last[name] = count

    def prove_anew(self) -> None:
        """Another one is in use from now on: what it carries has to be seen."""
        for line in self._lines.values():
            line.prove_anew()
