"""Whether a worker's process works: it uses the processor, or it moves bytes. Checked while a repair waits for it.

A fixed deadline would fail a working process in the middle of a long step, an import or a fetch. The beat does not help
here: a separate thread beats even if the training thread hangs. This is a module of its own, since these are numbers of
the system: core/repair/patience.py decides what they mean. Not seen: bytes that pass through one of gloo's sockets.
Copying those bytes takes processor time, which is seen.
"""

from __future__ import annotations

import os
from pathlib import Path

SAMPLE_NS = 2_000_000_000
BUSY_SHARE = 50
"""Using 1/BUSY_SHARE of a processor counts as work: a waiting process uses less for its beat and its link."""
MOVED_BYTES = 1 << 20
"""This many bytes, read, written or carried by the node's rails since the last look, count as work, too."""
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Effort:
    """The work of one process. `work` grows by one with every look that finds it working."""

    def __init__(self, pid: int) -> None:
        self.work = 0
        self._pid = pid
        self._looked_at = -1
        self._processor_ns = self._bytes = 0

    def look(self, now_ns: int, carried: int) -> int:
        """Look if it is time to; returns the count `work`. `carried`: how many bytes the node's rails have carried."""
        since = now_ns - self._looked_at
        if self._looked_at >= 0 and since < SAMPLE_NS:
            return self.work
        processor_ns, moved = processor_time_ns(self._pid), moved_bytes(self._pid) + carried
        if self._looked_at >= 0:
            busy = (processor_ns - self._processor_ns) * BUSY_SHARE >= since
            self.work += busy or moved - self._bytes >= MOVED_BYTES
        self._looked_at, self._processor_ns, self._bytes = now_ns, processor_ns, moved
        return self.work


def processor_time_ns(pid: int) -> int:
    """The processor time that all threads of a process have used; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_NS
    except (OSError, ValueError, IndexError):
        return 0


def moved_bytes(pid: int) -> int:
    """How many bytes it has read and written through files and pipes; 0 if that cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines[:2])
    except (OSError, ValueError, IndexError):
        return 0
