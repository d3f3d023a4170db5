"""What the manager decides about rails, from the cable to the operator's screen, in real training with real faults.

A lost rail is lent, proves itself, and comes back once bytes flow on every rank. Its incident says what that cost. A
rail that is lost again rests longer. An operator's orders go the same way. Time limits are those that the manager
promises (core/limits.py), plus the time that a busy machine may need to notice.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd.bench.faults import FAULTS
from taskd.bench.hosts import Hosts
from taskd.bench.job import Job
from taskd.bench.members import until
from taskd.core import limits
from taskd.core.limits import SECOND
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.root, pytest.mark.slow]
importlib.import_module("torch")  # loads the libraries that the extension needs
needs_rail = pytest.mark.skipif(
    not hasattr(importlib.import_module("taskd._c10d"), "RailEngine"), reason="the rail backend is not built"
)
WORDS = (256, 3, 100_000)
RANKS = 4
NOTICED_S = PATIENCE_S / 3
"""The time that reports, orders and questions may take on a busy machine."""
LENT_S = limits.RAIL_CONFIRM_NS / SECOND + NOTICED_S
PROVED_S = (limits.RAIL_FOLLOW_NS + limits.RAIL_VERIFY_NS + limits.RAIL_GATHER_NS) / SECOND + NOTICED_S
"""From the end of a rail's quiet time to its return."""
CARRIED = 4 << 20
"""A number of bytes that only training carries. Probes and connection setup need fewer."""
Rows = dict[int, dict[str, Any]]


@pytest.fixture
def false(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a path. While that file exists, rank 3 of later jobs says that it puts rails back, but does not."""
    there = tmp_path / "false"
    monkeypatch.setattr("taskd.bench.job.TRAIN", Path(__file__).with_name("false_train.py"))
    monkeypatch.setenv("FALSE_RANK", str(RANKS - 1))
    monkeypatch.setenv("FALSE_WHILE", str(there))
    return there


@pytest.fixture
def job(request: pytest.FixtureRequest, two_hosts: Hosts) -> Iterator[Job]:
    if "false" in request.fixturenames:
        request.getfixturevalue("false")
    with Job(WORDS, ranks=RANKS, nodes=2, hosts=two_hosts) as one:
        one.settle(2)
        one.follow()
        for rail in two_hosts.rails:
            assert carries(two_hosts, rail, NOTICED_S), f"rail {rail} does not carry{one.said()}"
            shown(one, rail, lambda row: (row["state"], row["use"]) == ("up", "in use"), NOTICED_S)
        yield one


def carries(hosts: Hosts, rail: str, seconds: float) -> bool:
    here = hosts.hosts[0]
    goal = here.bytes(rail) + CARRIED
    return until(lambda: here.bytes(rail) >= goal, seconds)


def listed(job: Job, rail: str) -> list[dict[str, Any]]:
    """Return what `taskd rail list` says about this rail, for each host."""
    answer = job.ask("rail", "list")
    return [] if answer is None else [row for row in answer["rails"] if row["rail"] == rail]


def shown(job: Job, rail: str, how: Callable[[dict[str, Any]], bool], seconds: float) -> list[dict[str, Any]]:
    """Wait until `how` is true for this rail on both hosts, and return what `taskd rail list` says."""
    rows: list[dict[str, Any]] = []
    ends = time.monotonic() + seconds
    while not (len(rows) == 2 and all(map(how, rows))):
        assert time.monotonic() < ends, f"{rows}{job.said()}"
        rows = listed(job, rail)
    return rows


def taken_out(job: Job, rail: str) -> bool:
    """Take a rail out as an operator. Retry while the other rail is silent for a moment and cannot stand in."""
    return until(lambda: job.command("rail", "out", rail).returncode == 0, NOTICED_S)


def lent(job: Job, hosts: Hosts, name: str, rail: str) -> tuple[int, dict[str, Any]]:
    """Break a rail and wait until it is lent. Return the time of day before the fault, and the first host's row."""
    begin_ns = time.time_ns()
    FAULTS[name].inject(hosts, 0, rail)
    job.event("rail", begin_ns, LENT_S, "carries nothing from now on")
    rows = listed(job, rail)
    assert len(rows) == 2, f"{rows}{job.said()}"
    return begin_ns, rows[0]


def is_left(hosts: Hosts, rail: str, other: str) -> bool:
    """Whether training goes on over the other rail alone. This one may help while the other is late."""
    here, ends = hosts.hosts[0], time.monotonic() + 4 * NOTICED_S
    while time.monotonic() < ends:
        before = here.bytes(rail)
        assert carries(hosts, other, NOTICED_S)
        if here.bytes(rail) - before < CARRIED // 16:
            return True
    return False


@needs_rail
def test_a_lost_rail_is_lent_proved_and_given_back(job: Job, two_hosts: Hosts) -> None:
    begin_ns, _ = lent(job, two_hosts, "down", "a")
    row, _ = shown(job, "a", lambda row: (row["state"], row["use"]) == ("down", "borrowed"), LENT_S)
    assert row["borrowers"] == ["b"] and row["age_ms"] < 1000 * LENT_S
    assert row["last_error"] and row["bytes_in"] > CARRIED < row["bytes_out"]
    assert row["back_off_ms"] >= limits.RAIL_QUIET_NS // limits.MS
    table = job.command("rail", "list").stdout
    line = next(line for line in table.splitlines() if line.split()[1:3] == ["a", "down"])
    assert "borrowed" in line and " b " in line, table
    opened = job.ask("incidents")
    assert opened is not None and "open" in [one["outcome"] for one in opened["incidents"]]
    assert is_left(two_hosts, "a", "b")

    FAULTS["down"].heal(two_hosts, 0, "a")
    healed_ns = time.time_ns()
    quiet_s = limits.RAIL_QUIET_NS / SECOND
    job.event("rail", healed_ns, NOTICED_S, "it answers again and is probed")
    returns = job.event("rail", healed_ns, quiet_s + NOTICED_S, "may carry again")
    assert returns["wall_ns"] - healed_ns >= limits.RAIL_QUIET_NS
    job.event("rail", healed_ns, PROVED_S, "bytes flow on every line and rank")
    closed = job.event("closed", healed_ns, NOTICED_S, "the rail carries again")
    shown(job, "a", lambda row: (row["state"], row["use"]) == ("up", "in use"), NOTICED_S)
    assert carries(two_hosts, "a", NOTICED_S)
    facts = job.ask("incidents")
    assert facts is not None
    (incident,) = [one for one in facts["incidents"] if one["id"] == closed["incident"]]
    assert (incident["kind"], incident["strategy"], incident["outcome"]) == ("rail", "borrow", "healed")
    assert incident["cost"]["borrowed_bytes"] > CARRIED
    assert not any(event["kind"] in ("process", "lost") for event in job.since(begin_ns))


@needs_rail
def test_a_flapping_rail_rests_longer_each_time(job: Job, two_hosts: Hosts) -> None:
    least_ms = limits.RAIL_QUIET_NS // limits.MS
    for name in ("reset", "silence"):
        begin_ns, row = lent(job, two_hosts, name, "b")
        FAULTS[name].heal(two_hosts, 0, "b")
        rest_ms = row["back_off_ms"]
        assert rest_ms >= least_ms, row
        returns = job.event("rail", begin_ns, 2 * rest_ms / 1000 + LENT_S + NOTICED_S, "may carry again")
        assert returns["wall_ns"] - begin_ns >= rest_ms * limits.MS
        job.event("closed", begin_ns, PROVED_S)
        least_ms = 2 * rest_ms
    _, row = lent(job, two_hosts, "flap", "b")
    assert row["back_off_ms"] >= least_ms, row


@needs_rail
def test_an_operator_takes_a_rail_out_and_puts_it_back(job: Job, two_hosts: Hosts) -> None:
    begin_ns = time.time_ns()
    assert taken_out(job, "a"), job.said()
    job.event("rail", begin_ns, NOTICED_S, "every rank has followed")
    shown(job, "a", lambda row: (row["state"], row["use"], row["borrowers"]) == ("up", "out", ["b"]), NOTICED_S)
    assert is_left(two_hosts, "a", "b")
    only = job.command("rail", "out", "b")
    assert only.returncode == 2 and "only one" in only.stderr, only.stdout + only.stderr
    back = job.command("rail", "back", "a")
    assert back.returncode == 0, back.stdout + back.stderr
    job.event("rail", begin_ns, NOTICED_S, "bytes flow on every line and rank")
    shown(job, "a", lambda row: row["use"] == "in use", NOTICED_S)
    assert carries(two_hosts, "a", NOTICED_S)


@needs_rail
def test_a_rail_that_is_out_is_lent_to_none_but_carries_when_it_is_the_last(job: Job, two_hosts: Hosts) -> None:
    """An operator's order holds as long as another rail is left. Training goes on in any case."""
    assert taken_out(job, "a"), job.said()
    assert is_left(two_hosts, "a", "b")
    FAULTS["down"].inject(two_hosts, 1, "b")
    assert carries(two_hosts, "a", NOTICED_S), job.said()
    FAULTS["down"].heal(two_hosts, 1, "b")
    threading.Event().wait(limits.RAIL_CONFIRM_NS / SECOND)
    assert carries(two_hosts, "b", NOTICED_S), job.said()
    assert all(row["use"] == "out" for row in listed(job, "a"))


@needs_rail
def test_a_rank_is_healed_on_a_node_whose_interface_is_gone(job: Job, two_hosts: Hosts) -> None:
    """Named rails must exist when a job begins. One that is gone later is a fault: the newcomer uses the other one."""
    begin_ns, _ = lent(job, two_hosts, "vanish", "a")
    rank = next(one for one in job.settle(1, rails=False).values() if one["rank"] == 1)
    os.kill(rank["pid"], signal.SIGKILL)
    closed = job.event("closed", begin_ns, 4 * NOTICED_S, "every rank has done its first step")
    assert closed["incident"], job.said()
    ranks = job.settle(2, rails=False)
    told = [event["text"] for event in job.since(begin_ns)]
    assert ranks[1]["incarnation"] >= 2 and "no interface rail-a" in job.said(), "\n".join(told) + job.said()
    job.finish(rails=False)
    assert len(job.results()) == RANKS, job.said()


@needs_rail
def test_a_rail_that_some_pairs_of_ranks_do_not_use_goes_out_again(false: Path, job: Job, two_hosts: Hosts) -> None:
    """Rank 3 says that the rail is back and does nothing. Its peers do not use the rail either, because its
    probes tell its true state. The other pairs carry bytes on every line, but that is no proof."""
    begin_ns = time.time_ns()
    assert taken_out(job, "a"), job.said()
    false.touch()
    back = job.command("rail", "back", "a")
    assert back.returncode == 1, back.stdout + back.stderr
    assert "out again:" in back.stdout and "over others alone" in back.stdout, back.stdout
    shown(job, "a", lambda row: row["use"] == "borrowed", NOTICED_S)
    assert is_left(two_hosts, "a", "b")
    false.unlink()
    healed_ns = time.time_ns()
    job.event("rail", healed_ns, 2 * limits.RAIL_QUIET_NS / SECOND + PROVED_S, "bytes flow on every line and rank")
    closed = job.event("closed", healed_ns, NOTICED_S, "the rail carries again")
    assert closed["incident"] and carries(two_hosts, "a", NOTICED_S)
    assert not any(event["kind"] in ("process", "lost") for event in job.since(begin_ns))
