"""What a beat costs the training thread, and whether the beat thread keeps its rhythm while the GIL is held.

The first two figures are measured in this process. The third needs two processes, because a process that holds the GIL
cannot look: a child holds it for three seconds, and this process reads the child's page. No agent or manager is
involved.
"""

from __future__ import annotations

import itertools
import socket
import subprocess
import sys
import time

from taskd.bench.report import Figure, Goal, median

RUNS = 7
STORES = 200_000
PERIOD_NS = 50_000_000
HOLD_SECONDS = 3.0

_CHILD = """
import socket, sys
from taskd import _native
page = _native.Page.create(0, 1)
page.start_beat({period})
with socket.socket(fileno=int(sys.argv[1])) as line:
    socket.send_fds(line, [b"p"], [page.fd])
    line.recv(1)
    _native.hold_gil({hold})
    line.send(b"d")
    line.recv(1)
"""


def measure() -> dict[str, Figure]:
    """All figures of this benchmark."""
    from taskd import _native

    native = [_native.bench_store(STORES) for _ in range(RUNS)]
    page = _native.Page.create(0, 1)
    from_python = []
    for _ in range(RUNS):
        begin = time.perf_counter_ns()
        for step in range(STORES):
            page.store(1, step, 1, 2, 3)
        from_python.append((time.perf_counter_ns() - begin) / STORES)
    gaps = [_gap() for _ in range(3)]
    return {
        "store_cpp_ns": median(native, "ns", Goal("<", 100)),
        "store_python_ns": median(from_python, "ns", Goal("<", 1_000)),
        "gil_gap_periods": median(gaps, "periods", Goal("<", 2)),
    }


def _gap() -> float:
    """The longest time, in periods, between two beats of a child whose main thread holds the GIL."""
    from taskd import _native

    mine, theirs = socket.socketpair()
    code = _CHILD.format(period=PERIOD_NS, hold=HOLD_SECONDS)
    with (
        mine,
        subprocess.Popen([sys.executable, "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()]) as child,
    ):
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(mine, 1, 1)
        page = _native.Page.attach(descriptors[0])
        socket.close(descriptors[0])
        mine.send(b"g")
        mine.settimeout(0.002)
        seen: list[int] = []
        while True:
            beat = page.read()
            if beat is not None and (not seen or beat.beat_ns != seen[-1]):
                seen.append(beat.beat_ns)
            try:
                mine.recv(1)
                break
            except TimeoutError:
                continue
        mine.settimeout(None)
        mine.send(b"e")
        child.wait()
    return max(later - earlier for earlier, later in itertools.pairwise(seen)) / PERIOD_NS
