"""Training through rail faults on two hosts under taskd-run. The final weights are those of a run without faults.

The job trains until all faults are over, and is then told its last step. The run without faults is told the same last
step before it begins. A fault always hits the rail that carries most at that moment. test_decisions.py tests what the
manager decides meanwhile. Here rails may still be lost or lent when the next fault comes.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from typing import Any

import pytest

from taskd.bench.faults import FAULTS
from taskd.bench.hosts import Hosts
from taskd.bench.job import Job
from taskd.bench.members import until
from tests.patience import PATIENCE_S
from tests.verdicts import same_bits

pytestmark = [pytest.mark.root, pytest.mark.slow]
importlib.import_module("torch")  # loads the libraries that the extension needs
needs_rail = pytest.mark.skipif(
    not hasattr(importlib.import_module("taskd._c10d"), "RailEngine"), reason="the rail backend is not built"
)
WORDS = (256, 3, 20_000)
LASTS_S = 0.4
"""Longer than the manager takes to confirm that a rail is lost."""
IN_USE = 1 << 18
"""More bytes than probes and connection setup cause."""


def busiest(job: Job, hosts: Hosts, host: int) -> str:
    """Wait until a rail of this host is in use. Return the rail that carries most now."""
    here = hosts.hosts[host]
    before = {rail: here.bytes(rail) for rail in hosts.rails}

    def moved(rail: str) -> int:
        return here.bytes(rail) - before[rail]

    assert until(lambda: max(map(moved, hosts.rails)) >= IN_USE, PATIENCE_S), f"no rail is in use{job.said()}"
    return max(hosts.rails, key=moved)


def bear(job: Job, hosts: Hosts, name: str, host: int) -> None:
    """Apply one fault to the busiest rail, and heal it."""
    fault, rail = FAULTS[name], busiest(job, hosts, host)
    fault.inject(hosts, host, rail)
    threading.Event().wait(LASTS_S)  # the duration is part of the fault
    fault.heal(hosts, host, rail)


def final(job: Job) -> str:
    found = [one["weights"] for one in job.results() if "weights" in one]
    assert len(found) == 1, job.said()
    return str(found[0])


def compared(job: Job, hosts: Hosts, ranks: int, kind: str) -> tuple[str, str]:
    """Return the job's final weights, and those of a run without faults."""
    last = job.finish(rails=False)
    found = final(job)
    with Job(WORDS, ranks=ranks, nodes=2, hosts=hosts, kind=kind, last_step=last) as calm:
        return found, final(calm)


@needs_rail
@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 8), ("fsdp", 4)])
def test_rails_fail_under_training(two_hosts: Hosts, kind: str, ranks: int) -> None:
    with Job(WORDS, ranks=ranks, nodes=2, hosts=two_hosts, kind=kind) as job:
        job.settle(2)
        for turn, name in enumerate(FAULTS):
            bear(job, two_hosts, name, turn % 2)
        found, calm = compared(job, two_hosts, ranks, kind)
    same_bits(found, calm, kind)


@needs_rail
def test_ranks_die_while_rails_fail(two_hosts: Hosts) -> None:
    """A rank is killed while a rail is down, and a rail falls silent while the death of another rank is healed."""
    down, silence = FAULTS["down"], FAULTS["silence"]
    with Job(WORDS, ranks=4, nodes=2, hosts=two_hosts) as job:
        before = job.settle(2)
        rail = busiest(job, two_hosts, 0)
        down.inject(two_hosts, 0, rail)
        kill(job, before[3])
        between = job.settle(2, rails=False)
        down.heal(two_hosts, 0, rail)
        assert between[3]["incarnation"] > before[3]["incarnation"]
        rail = busiest(job, two_hosts, 1)
        kill(job, between[0])
        silence.inject(two_hosts, 1, rail)
        after = job.settle(2, rails=False)
        silence.heal(two_hosts, 1, rail)
        assert after[0]["incarnation"] > between[0]["incarnation"]
        bear(job, two_hosts, "reset", 0)
        found, calm = compared(job, two_hosts, 4, "ddp")
    same_bits(found, calm, "ddp")


def kill(job: Job, rank: dict[str, Any]) -> None:
    """Kill a rank and wait until its death is known. Its repair begins at that moment."""
    begin_ns = time.time_ns()
    os.kill(rank["pid"], signal.SIGKILL)
    job.event("process", begin_ns, PATIENCE_S)
