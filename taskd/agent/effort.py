"""Whether a worker's process works: it uses the processor, or it moves bytes. Looked at while a repair waits for it.

A deadline that a working process cannot move condemns it in the middle of a long step, an import or a fetch. Its beat
says nothing here, since a thread of its own beats even where the training thread hangs. Alone, since these are numbers
of the system's: core/repair/patience.py decides what they mean. Not seen: bytes that pass through a socket of gloo's;
for those the processor's time speaks, which copying them takes.
"""

from __future__ import annotations

import os
from pathlib import Path

SAMPLE_NS = 2_000_000_000
BUSY_SHARE = 50
"""One part of this many of a processor is work: a process that waits takes less for its beat and its link."""
MOVED_BYTES = 1 << 20
"""As much, read, written, or carried by the node's rails since the last look, is work, too."""
TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Effort:
    """Of one process. `work` grows by one with every look that found it at work."""

    def __init__(self, pid: int) -> None:
        self.work = 0
        self._pid = pid
        self._looked_at = -1
        self._processor_ns = self._bytes = 0

    def look(self, now_ns: int, carried: int) -> int:
        """The count by now; `carried`: bytes that the node's rails have carried so far."""
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
    """What all threads of a process have used; 0 when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICK_NS
    except (OSError, ValueError, IndexError):
        return 0


def moved_bytes(pid: int) -> int:
    """What it has read and written through files and pipes; 0 when nobody may know."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines[:2])
    except (OSError, ValueError, IndexError):
        return 0
