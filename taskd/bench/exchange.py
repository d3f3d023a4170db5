"""One rank of a process group that is measured: `python -m taskd.bench.exchange SPEC`, SPEC in JSON.

It does what its spec's task names, over the backend that it names, and says what it found in JSON lines. The inputs
are made from rank and number, so the same operation must always give the same bits: what the group gave before
anything was broken is kept, and every later result is compared with it. The stop is part of the operation itself (one
element of it), so all ranks stop after the same one.

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
"""Elements of the operations that go along with each large one in a mixed round."""


@dataclass(frozen=True)
class Spec:
    """What this rank is and does."""

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
        """From its JSON."""
        fields = json.loads(text)
        return cls(**fields | {"store": tuple(fields["store"])})


def say(**found: Any) -> None:
    """One line, in one piece."""
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def prepare(backend: str) -> None:
    """Make a backend of ours known to torch."""
    if backend == "rail":
        importlib.import_module("taskd.comm.rail").register()
    elif backend != "gloo":
        raise UsageError(f"there is no backend {backend!r}; gloo and rail can be measured.")


def begin(spec: Spec) -> None:
    """Meet the others."""
    prepare(spec.backend)
    torch.set_num_threads(1)
    host, port = spec.store
    store = dist.TCPStore(host, port, spec.size, spec.rank == 0, timeout=timedelta(seconds=30))
    limit = timedelta(seconds=spec.timeout_s)
    dist.init_process_group(spec.backend, store=store, rank=spec.rank, world_size=spec.size, timeout=limit)


# ---- operations that go on until they are stopped


class Round:
    """The operations that are done again and again, and what they gave when nothing was broken."""

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
        found[0] = 0.0  # the place of the wish to stop
        return found

    def _prepare(self, number: int, stop: bool) -> None:
        self.large.copy_(self.inputs[number])
        self.large[0] = float(stop)

    def _operate(self, number: int) -> list[torch.Tensor]:
        """What this round gives, apart from the wish to stop."""
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
        """Whether to stop, whether every bit is as it was without faults, and when the operations began and ended.

        What is done to their inputs before and to their results after is no part of their time.
        """
        self._prepare(number, stop)
        begin_ns = time.monotonic_ns()
        found = self._operate(number)
        end_ns = time.monotonic_ns()
        pairs = zip(found, self.wanted[number], strict=True)
        return bool(self.large[0] > 0), all(same_bits(one, other) for one, other in pairs), (begin_ns, end_ns)

    def digest(self) -> str:
        """Of what is the same on all ranks without faults."""
        whole = hashlib.sha256()
        for one in self.wanted:
            whole.update(one[0].numpy().tobytes())
        return whole.hexdigest()


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """NaN and -0.0 too."""
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def told(stop: threading.Event) -> None:
    """Wait for the word."""
    sys.stdin.readline()
    stop.set()


def bear(spec: Spec) -> None:
    """Rounds until rank 0 is told to stop; the times of their operations go into a file (pairs of nanoseconds)."""
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
        dist.barrier()  # who ends first takes its connections away, which others would count as lost
    say(rank=spec.rank, rounds=count, equal=equal, digest=work.digest(), error=error, **own)


def counted() -> dict[str, Any]:
    """What the transport has counted on this rank, by rail; empty without one."""
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
"""Those of this file; versus.py has the ones that compare two backends or look at one alone."""


def main(text: str) -> None:
    spec = Spec.read(text)
    task = TASKS.get(spec.task) or importlib.import_module("taskd.bench.versus").TASKS[spec.task]
    begin(spec)
    task(spec)
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
