"""Training through faults of rails, on two hosts under taskd-run: the final weights are those of a run without faults.

The job trains until it has borne everything, and is then told its last step; the run it is compared with is told the
same one before it begins.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time

import pytest

from taskd.bench.faults import FAULTS
from taskd.bench.hosts import Hosts
from taskd.bench.job import Job
from taskd.bench.members import until

pytestmark = [pytest.mark.root, pytest.mark.slow]
importlib.import_module("torch")  # its libraries are those that the extension needs
needs_rail = pytest.mark.skipif(
    not hasattr(importlib.import_module("taskd._c10d"), "RailEngine"), reason="the rail backend is not built"
)
WORDS = (256, 3, 20_000)
LASTS_S = 0.4


def carries(hosts: Hosts, rail: str, enough: int = 1 << 18) -> bool:
    """Wait until training uses this rail."""
    goal = hosts.hosts[0].bytes(rail) + enough
    return until(lambda: hosts.hosts[0].bytes(rail) >= goal, 60)


def trains(job: Job, hosts: Hosts) -> None:
    job.settle(2)
    for rail in hosts.rails:
        assert carries(hosts, rail), f"rail {rail} does not carry{job.said()}"


def weights(hosts: Hosts, ranks: int, kind: str, last_step: int) -> str:
    """Of a run that nothing happens to."""
    with Job(WORDS, ranks=ranks, nodes=2, hosts=hosts, kind=kind, last_step=last_step) as job:
        return final(job)


def final(job: Job) -> str:
    found = [one["weights"] for one in job.results() if "weights" in one]
    assert len(found) == 1, job.said()
    return str(found[0])


def bear(job: Job, hosts: Hosts, name: str, turn: int) -> None:
    """One fault, on rails and hosts in turn, while the rail is in use."""
    fault, host, rail = FAULTS[name], turn % 2, hosts.rails[turn // 2 % 2]
    assert carries(hosts, rail), f"rail {rail} does not carry before {name}{job.said()}"
    fault.inject(hosts, host, rail)
    threading.Event().wait(LASTS_S)  # how long it lasts is part of the fault
    fault.heal(hosts, host, rail)


@needs_rail
@pytest.mark.parametrize(("kind", "ranks"), [("ddp", 8), ("fsdp", 4)])
def test_rails_fail_under_training(two_hosts: Hosts, kind: str, ranks: int) -> None:
    with Job(WORDS, ranks=ranks, nodes=2, hosts=two_hosts, kind=kind) as job:
        trains(job, two_hosts)
        for turn, name in enumerate(FAULTS):
            bear(job, two_hosts, name, turn)
        trains(job, two_hosts)
        last = job.finish()
        found = final(job)
    assert found == weights(two_hosts, ranks, kind, last)


@needs_rail
def test_ranks_die_while_rails_fail(two_hosts: Hosts) -> None:
    """A rank is killed while a rail is down, and a rail falls silent while the death of another rank is healed."""
    with Job(WORDS, ranks=4, nodes=2, hosts=two_hosts) as job:
        trains(job, two_hosts)
        victim = job.settle(1)[3]["pid"]
        begin_ns = time.time_ns()
        FAULTS["down"].inject(two_hosts, 0, "a")
        os.kill(victim, signal.SIGKILL)
        healed(job, begin_ns)
        FAULTS["down"].heal(two_hosts, 0, "a")
        trains(job, two_hosts)
        victim = job.settle(1)[0]["pid"]
        begin_ns = time.time_ns()
        os.kill(victim, signal.SIGKILL)
        job.event("process", begin_ns)
        FAULTS["silence"].inject(two_hosts, 1, "b")
        healed(job, begin_ns)
        FAULTS["silence"].heal(two_hosts, 1, "b")
        trains(job, two_hosts)
        last = job.finish()
        found = final(job)
    assert found == weights(two_hosts, 4, "ddp", last)


def healed(job: Job, begin_ns: int) -> None:
    """Wait until all train again; the incident of the rail may stay open longer."""
    job.event("process", begin_ns)
    assert until(lambda: not dead(job), 60), job.said()


def dead(job: Job) -> list[int]:
    """The ranks that are not training."""
    facts = job.ask("status") or {"ranks": [{"rank": -1, "state": "unknown", "stage": ""}]}
    return [one["rank"] for one in facts["ranks"] if one["state"] != "alive" or one["stage"] != "running"]
