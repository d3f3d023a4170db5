"""One rank of a process group that is measured: `python -m taskd.bench.exchange SPEC`, SPEC in JSON.

The spec names the task and the backend. The rank runs the task over the backend and prints its results as JSON lines.
The inputs are made from rank and number, so the same operation must always give the same bits. The results from before
the first fault are kept, and every later result is compared with them. The request to stop is part of the operation
itself (one element of it), so all ranks stop after the same operation.

members.py starts it. It judges nothing.
"""

from __future__ import annotations

import array
import hashlib
import importlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taskd import _native
from taskd.comm import counters
from taskd.core import limits
from taskd.errors import UsageError

PATTERNS = 4
SMALL = 1000
"""The number of elements of the small operations that accompany each large one in a mixed round."""


@dataclass(frozen=True)
class Spec:
    """What this rank is, and what it has to do."""

    rank: int
    size: int
    store: tuple[str, int]
    task: str
    words: dict[str, Any]
    folder: str
    backend: str
    timeout_s: float

    @classmethod
    def read(cls, text: str) -> Spec:
        """The spec in this JSON text."""
        fields = json.loads(text)
        return cls(**fields | {"store": tuple(fields["store"])})


def say(**found: Any) -> None:
    """Print one JSON line, in one write."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def prepare(backend: str) -> None:
    """Register our backend with torch."""
    if backend == "rail":
        importlib.import_module("taskd.comm.rail").register()
    elif backend != "gloo":
        raise UsageError(f"there is no backend {backend!r}; gloo and rail can be measured.")


def begin(spec: Spec) -> None:
    """Meet the other ranks in the default process group."""
    prepare(spec.backend)
    torch.set_num_threads(1)
    host, port = spec.store
    store = dist.TCPStore(host, port, spec.size, spec.rank == 0, timeout=timedelta(seconds=30))
    limit = timedelta(seconds=spec.timeout_s)
    dist.init_process_group(spec.backend, store=store, rank=spec.rank, world_size=spec.size, timeout=limit)


# ---- operations that run until they are stopped


class Round:
    """The operations that are repeated, and their results from before any fault."""

    def __init__(self, spec: Spec) -> None:
        self.mixed = spec.words.get("mixed", False)
        self.rank, self.size = spec.rank, spec.size
        self.inputs = [self._input(number, spec.words["elements"]) for number in range(PATTERNS)]
        self.large = torch.empty_like(self.inputs[0])
        self.small = [torch.randint(-99, 99, (SMALL,), dtype=torch.int64) for _ in range(PATTERNS)]
        self.wanted: list[list[torch.Tensor]] = []
        for number in range(PATTERNS):
            self._prepare(number, False)
            found = self._operate(number)
            self.wanted.append([one.clone() for one in found])

    def _input(self, number: int, elements: int) -> torch.Tensor:
        torch.manual_seed(1_000 * number + self.rank)
        found = torch.randn(elements + 1)
        found[0] = 0.0  # the place of the request to stop
        return found

    def _prepare(self, number: int, stop: bool) -> None:
        self.large.copy_(self.inputs[number])
        self.large[0] = float(stop)

    def _operate(self, number: int) -> list[torch.Tensor]:
        """Return the results of this round, without the request to stop."""
        dist.all_reduce(self.large)
        return [self.large[1:], *(self._others(number) if self.mixed else [])]

    def _others(self, number: int) -> list[torch.Tensor]:
        own, half = self.small[number], self.inputs[number][1:].bfloat16()
        everyone = torch.empty(self.size * SMALL, dtype=own.dtype)
        dist.all_gather_into_tensor(everyone, own)
        told = own.clone()
        dist.broadcast(told, number % self.size)
        even = half[: len(half) // self.size * self.size]
        exchanged = torch.empty_like(even)
        dist.all_to_all_single(exchanged, even)
        share = torch.empty(len(even) // self.size)
        dist.reduce_scatter_tensor(share, even.float())
        lowest = own.clone()
        dist.all_reduce(lowest, dist.ReduceOp.MIN)
        return [everyone, told, exchanged, share, lowest]

    def run(self, number: int, stop: bool) -> tuple[bool, bool, tuple[int, int]]:
        """Return whether to stop, whether every bit is as without faults, and when the operations began and ended.

        This time does not include the preparation of the inputs and the comparison of the results.
        """
        self._prepare(number, stop)
        begin_ns = time.monotonic_ns()
        found = self._operate(number)
        end_ns = time.monotonic_ns()
        pairs = zip(found, self.wanted[number], strict=True)
        return bool(self.large[0] > 0), all(same_bits(one, other) for one, other in pairs), (begin_ns, end_ns)

    def digest(self) -> str:
        """The hash of those results that are the same on all ranks without faults."""
        whole = hashlib.sha256()
        for one in self.wanted:
            whole.update(one[0].numpy().tobytes())
        return whole.hexdigest()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether both have the same bits, including NaN and -0.0."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def told(stop: threading.Event) -> None:
    """Wait for the line that says to stop."""
    sys.stdin.readline()
    stop.set()


def bear(spec: Spec) -> None:
    """Run rounds until rank 0 is told to stop. The times of their operations go into a file (pairs of nanoseconds)."""
    stop = threading.Event()
    if spec.rank == 0:
        threading.Thread(target=told, args=(stop,), daemon=True).start()
    work = Round(spec)
    say(rank=spec.rank, ready=True)
    times = array.array("q")
    count, equal, stopped, error = 0, 0, False, ""
    pause = threading.Event()
    while not stopped:
        try:
            stopped, right, took = work.run(count % PATTERNS, stop.is_set())
        except RuntimeError as broken:
            error = str(broken)
            break
        times.extend(took)
        count, equal = count + 1, equal + right
        if spec.words.get("idle_every") and count % spec.words["idle_every"] == 0:
            pause.wait(spec.words["idle_s"])
    Path(spec.folder, f"times.{spec.rank}").write_bytes(times.tobytes())
    own = counted()
    if not error:
        dist.barrier()  # the first rank to end closes its connections, and others would count them as lost
    say(rank=spec.rank, rounds=count, equal=equal, digest=work.digest(), error=error, **own)


def counted() -> dict[str, Any]:
    """What the transport has counted on this rank, by rail; empty without a transport that counts."""
    tally = _native.RailTally(limits.RAIL_VERIFY_BYTES)

    def add(_: str, fd: int) -> None:
        tally.add(fd)

    counters.watch(add)
    counters.watch(None)
    found: dict[str, dict[str, int]] = {"downs": {}, "hedged": {}, "retransmitted": {}, "bytes_out": {}}
    for one in tally.read():
        for name, values in found.items():
            values[one.rail] = values.get(one.rail, 0) + getattr(one, name)
    return dict(found)


TASKS: dict[str, Callable[[Spec], None]] = {"bear": bear}
"""The tasks of this file. versus.py has the tasks that compare two backends or measure one alone."""


def main(text: str) -> None:
    spec = Spec.read(text)
    task = TASKS.get(spec.task) or importlib.import_module("taskd.bench.versus").TASKS[spec.task]
    begin(spec)
    task(spec)
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
