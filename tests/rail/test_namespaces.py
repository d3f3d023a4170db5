"""Real processes on separate hosts, whose rails really break while they communicate. No bit of a result may change.

The ranks themselves compare every round with a round before any fault. This file pulls the cables. It uses the same
hosts and faults with gloo, to show that the faults do break something.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

import pytest

from taskd.bench.faults import FAULTS, Fault
from taskd.bench.hosts import Hosts
from taskd.bench.members import Failed, Ranks, until
from tests.patience import PATIENCE_S
from tests.verdicts import same_bits

pytestmark = pytest.mark.root
importlib.import_module("torch")  # loads the libraries that the extension needs
needs_rail = pytest.mark.skipif(
    not hasattr(importlib.import_module("taskd._c10d"), "RailEngine"), reason="the rail backend is not built"
)
MEGABYTE = 1 << 18  # elements
ENDURE_S = 0.4
TURNS = 2


def wait(seconds: float) -> None:
    """Let a fault last. Its duration is part of the test."""
    threading.Event().wait(seconds)


def disturbed(ranks: Ranks, hosts: Hosts, fault: Fault, turns: int = TURNS, lasts_s: float = ENDURE_S) -> None:
    """Break and heal one rail after the other, each while it carries bytes."""
    ranks.wait("ready")
    for turn in range(turns):
        rail = hosts.rails[turn % len(hosts.rails)]
        assert ranks.flowing(0, rail), f"rail {rail} carries nothing before {fault.name} number {turn}:\n{ranks.said()}"
        fault.inject(hosts, turn % len(hosts.hosts), rail)
        wait(lasts_s)
        fault.heal(hosts, turn % len(hosts.hosts), rail)
    for rail in hosts.rails:
        assert ranks.flowing(0, rail), f"rail {rail} did not come back after {fault.name}:\n{ranks.said()}"


def undamaged(ranks: Ranks) -> list[dict[str, Any]]:
    """Stop the ranks, and check that every bit of every round on every rank equals a run without faults."""
    ranks.stop()
    found = ranks.wait("rounds")
    assert not any(one["error"] for one in found), found
    assert len({one["rounds"] for one in found}) == 1 and found[0]["rounds"] > 0, found
    same_bits([one["equal"] for one in found], [one["rounds"] for one in found], str(found))
    same_bits([one["digest"] for one in found], [found[0]["digest"]] * len(found), str(found))
    return found


@needs_rail
def test_no_fault_changes_a_bit_between_four_ranks(two_hosts: Hosts) -> None:
    with Ranks("bear", 4, backend="rail", hosts=two_hosts, elements=MEGABYTE, mixed=True) as ranks:
        for fault in FAULTS.values():
            disturbed(ranks, two_hosts, fault)
        undamaged(ranks)


@needs_rail
def test_no_fault_changes_a_bit_between_eight_ranks_where_only_one_host_learns_of_its_cable(four_hosts: Hosts) -> None:
    with Ranks("bear", 8, backend="rail", hosts=four_hosts, elements=MEGABYTE // 4, mixed=True) as ranks:
        for fault in FAULTS.values():
            disturbed(ranks, four_hosts, fault)
        undamaged(ranks)


@needs_rail
def test_a_rail_that_breaks_while_it_is_being_connected(two_hosts: Hosts) -> None:
    """A rail is silent before the first connection. The group forms over the other rail, and uses this one later."""
    FAULTS["silence"].inject(two_hosts, 0, "b")
    with Ranks("bear", 4, backend="rail", hosts=two_hosts, elements=MEGABYTE) as ranks:
        ranks.wait("ready")
        assert ranks.flowing(0, "a")
        FAULTS["silence"].heal(two_hosts, 0, "b")
        assert ranks.flowing(0, "b", enough=8 << 20)
        undamaged(ranks)


@needs_rail
def test_all_rails_gone_for_good_is_an_error_that_names_them(two_hosts: Hosts) -> None:
    retry = {"TASKD_RETRY": "MaxCnt:1, HoldTime:300, IntervalTime:200"}
    with Ranks("bear", 2, backend="rail", hosts=two_hosts, elements=MEGABYTE, environment=retry) as ranks:
        ranks.wait("ready")
        assert ranks.flowing(0, "a")
        FAULTS["both-silent"].inject(two_hosts, 0, "a")
        found = ranks.wait("rounds", PATIENCE_S)
        for one in found:
            other = 1 - one["rank"]
            assert f"rank {other}" in one["error"] and "all_reduce" in one["error"], one
            places = [two_hosts.hosts[other].address(rail) for rail in two_hosts.rails]
            assert all(f"{rail} ({at}" in one["error"] for rail, at in zip(two_hosts.rails, places, strict=True)), one


# ---- the same with gloo, to show that these faults break something


@pytest.mark.parametrize("name", ["reset", "silence"])
def test_gloo_does_not_survive_it(two_hosts: Hosts, name: str) -> None:
    limit_s = 20  # gloo has no other way to notice silence
    with Ranks("bear", 2, backend="gloo", hosts=two_hosts, elements=MEGABYTE, timeout_s=limit_s) as ranks:
        ranks.wait("ready")
        assert ranks.flowing(0, "a")
        FAULTS[name].inject(two_hosts, 0, "a")
        assert until(lambda: broken(ranks), PATIENCE_S), ranks.said()


def broken(ranks: Ranks) -> bool:
    """Whether a rank has an error or has ended. Some of gloo's errors end the process."""
    errors = [one["error"] for one in ranks.found("error").values()]
    return any(errors) or any(process.poll() for process in ranks.processes)


def test_gloo_undisturbed_gives_the_same_bits_each_time(two_hosts: Hosts) -> None:
    """Test the comparison itself where gloo's rail is not broken. A rail that gloo does not use may break."""
    with Ranks("bear", 4, backend="gloo", hosts=two_hosts, elements=MEGABYTE, mixed=True) as ranks:
        ranks.wait("ready")
        assert ranks.flowing(0, "a")
        FAULTS["down"].inject(two_hosts, 0, "b")
        assert ranks.flowing(0, "a", enough=4 << 20)
        undamaged(ranks)


def test_what_cannot_be_done_is_said(two_hosts: Hosts) -> None:
    """Ranks that cannot do what they are told raise an error that quotes what they said."""
    with pytest.raises(Failed, match="KeyError: 'never'"), Ranks("never", 2, backend="gloo", hosts=two_hosts) as ranks:
        ranks.wait("ready", PATIENCE_S)
