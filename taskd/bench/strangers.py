"""What strangers can do to a running job: `taskd bench strangers`.

A job trains on one node. Then very many connections are held open to each port that any of its processes listens on:
silent ones, slow ones, and ones that send garbage (knock.py). The figures say what it costs the training, how much
memory the job's processes take for it, how many connections they keep, and whether anybody was let in. A step that is
late by its own work is late without strangers, too: the longest one before they come is measured in the same job.

Nothing is injected into the product. It does NOT try what somebody could do who holds the job's key.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from taskd.bench.job import Job
from taskd.bench.report import Figure, Goal

KNOCK = Path(__file__).with_name("knock.py")
CONNECTIONS = 5_000
"""To each port."""
RANKS = 2
WORDS = (512, 4, 40_000)
SETTLE_STEPS = 50
WATCH_S = 20.0
"""For so long the training is watched without strangers, and as long with them."""
_LISTENS = "0A"


def processes_of(root: int) -> list[int]:
    """This process and all that descend from it."""
    found = [root]
    for pid in found:
        for thread in _listed(f"/proc/{pid}/task"):
            try:
                found += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
            except OSError:
                continue
    return found


def ports_of(pids: list[int]) -> list[str]:
    """HOST:PORT of each socket that one of these listens on, where a stranger of this machine reaches it."""
    inodes = {os.path.basename(link)[8:-1] for pid in pids for link in _sockets(pid)}
    found = set()
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            local, state, inode = row.split()[1], row.split()[3], row.split()[9]
            if state == _LISTENS and inode in inodes:
                address, _, port = local.partition(":")
                host = ".".join(str(byte) for byte in reversed(bytes.fromhex(address[-8:])))
                found.add(f"{'127.0.0.1' if host == '0.0.0.0' else host}:{int(port, 16)}")
    return sorted(found)


def memory_mb(pids: list[int]) -> float:
    """What these processes have to themselves, or their share of it."""
    total = 0
    for pid in pids:
        try:
            rows = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(row.split()[1]) for row in rows if row.startswith("Pss:"))
    return total / 1024


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    with Job(WORDS, ranks=RANKS) as job:
        job.settle(SETTLE_STEPS)
        pids = processes_of(job.launchers[0].pid)
        ports, calm_mb = ports_of(pids), memory_mb(pids)
        calm = _watched()
        strangers = [_Strangers(port) for port in ports]
        try:
            for one in strangers:
                one.counts()  # all are there
            crowded = _watched()
            crowded_mb = memory_mb(pids)
            held = {one.port: one.ask() for one in strangers}
            facts = job.ask("status") or {"ranks": [], "nodes": [], "incidents": {"total": -1}}
        finally:
            for one in strangers:
                one.end()
        job.finish()
        job.results()
        steps = [(begin, end) for times in job.times().values() for begin, end in times]
    for port, (kept, closed) in held.items():
        print(f"{port}: {kept} held, {closed} closed", file=sys.stderr, flush=True)
    quiet, loud = _lengths_ms(steps, *calm), _lengths_ms(steps, *crowded)
    strange = len(facts["ranks"]) - RANKS + len(facts["nodes"]) - 1
    return {
        "ports": Figure(len(ports), "ports"),
        "connections_held": Figure(sum(kept for kept, _ in held.values()), "connections"),
        "refused": Figure(sum(closed for _, closed in held.values()), "connections"),
        "let_in": Figure(strange, "strangers", Goal("==", 0)),
        "training_slowed_percent": Figure(100 * (_median(loud) / _median(quiet) - 1), "%"),
        "longest_step_ms": Figure(max(loud), "ms"),
        "longest_calm_step_ms": Figure(max(quiet), "ms"),
        "late_ms": Figure(max(0.0, max(loud) - max(quiet)), "ms", Goal("<", 100)),
        "memory_mb": Figure(crowded_mb - calm_mb, "MB", Goal("<", 100)),
        "incidents": Figure(facts["incidents"]["total"], "incidents", Goal("==", 0)),
    }


class _Strangers:
    """The process that holds connections to one port: a process may have no more of them than that."""

    def __init__(self, port: str) -> None:
        self.port = port
        command = [sys.executable, str(KNOCK), str(CONNECTIONS), port]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def counts(self) -> tuple[int, int]:
        """How many are open, and how many the other side has closed so far, in the next line that it says."""
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())
        return sum(found["open"].values()), sum(found["closed"].values())

    def ask(self) -> tuple[int, int]:
        """The same, now."""
        assert self._process.stdin is not None
        self._process.stdin.write("how many\n")
        self._process.stdin.flush()
        return self.counts()

    def end(self) -> None:
        """Close them all."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _watched() -> tuple[int, int]:
    """Begin and end of a while in which nothing is done."""
    begin = time.monotonic_ns()
    time.sleep(WATCH_S)  # the time in which steps are counted
    return begin, time.monotonic_ns()


def _lengths_ms(steps: list[tuple[int, int]], since: int, until: int) -> list[float]:
    return [(end - begin) / 1e6 for begin, end in steps if since <= begin and end <= until] or [0.0]


def _median(lengths: list[float]) -> float:
    return sorted(lengths)[len(lengths) // 2]


def _sockets(pid: int) -> Iterator[str]:
    for number in _listed(f"/proc/{pid}/fd"):
        try:
            link = os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
        if link.startswith("socket:["):
            yield link


def _listed(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
