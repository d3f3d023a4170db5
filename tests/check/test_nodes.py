"""`taskd check` on real processes: the node or rail that is at fault is named, and nobody else leaves.

All nodes are on one machine. If it is busy, a node that is well may be slow, and then it is said to be a straggler.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.check.conftest import Check
from tests.check.network import RAILS, network
from tests.patience import PATIENCE_S


def test_a_node_that_computes_wrongly_leaves(check: Check) -> None:
    done = check(4, plants={2: "wrong"})
    assert (done.leaving, done.findings[2]) == ([2], "wrong results"), done.said
    assert (done.codes[0], done.codes[2]) == (1, 69), done.said
    assert done.said[0].startswith("Round 0: The node elapsed time are {0: "), done.said[0]


@pytest.mark.parametrize("plant", ["killed", "stopped", "other_torch"])
def test_the_node_at_fault_leaves(check: Check, plant: str) -> None:
    done = check(4, plants={1: plant})
    finding = "unlike the others" if plant == "other_torch" else "down"
    assert (done.leaving, done.findings[1]) == ([1], finding), done.said
    assert plant == "other_torch" or "1: 3600.0" in done.said[0], done.said[0]


def test_a_node_that_never_comes_is_down_and_nobody_waits_for_ever(check: Check) -> None:
    done = check(4, absent=[3], words=["--check-timeout", "20"])
    assert (done.leaving, done.findings[3]) == ([], "down"), done.said


def test_two_nodes_of_one_number_are_refused(free_port: Callable[[], int]) -> None:
    place = f"127.0.0.1:{free_port()}"
    words = [sys.executable, "-m", "taskd", "check", "--nnodes", "3", "--endpoint", place, "--check-timeout", "15"]
    started = [
        subprocess.Popen([*words, "--node-rank", str(at)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for at in (0, 1, 1)
    ]
    said = [process.communicate(timeout=PATIENCE_S)[0] for process in started]
    refused = [text for text in said if "node 1 is here already: each node needs a --node-rank of its own" in text]
    assert len(refused) == 1, said


def test_a_node_that_lies_stays(check: Check) -> None:
    done = check(4, plants={3: "liar"})
    assert (done.leaving, done.findings[3]) == ([], "lies"), done.said


@pytest.mark.parametrize("fault", ["", "cut", "slow"])
def test_rails_of_hosts(check: Check, fault: str) -> None:
    with network(4) as hosts:
        if fault == "cut":
            hosts.ip(2, "link", "set", RAILS[1], "down")
        elif fault == "slow":
            hosts.slow(2, 1)
        done = check(4, within=[hosts.within(at) for at in range(4)], host=hosts.address(0))
    assert done.leaving == [], done.said
    rails = [f"rail {RAILS[1]}" in one["components"] for one in done.report["nodes"]]
    assert rails == [False, False, bool(fault), False], done.report
