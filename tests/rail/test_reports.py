"""How rail counters get from a worker's memory to its agent's sums and the manager's records. All are real processes.

The workers here count in place of a transport. The transport's own tests cover how a transport counts.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from taskd import _native
from taskd.agent.rails import Rails
from taskd.agent.workers import Worker, Workers
from taskd.core import limits
from taskd.core.messages import CountersShown
from taskd.core.types import RailState
from taskd.wire import local
from taskd.wire.codec import Envelope, encode
from tests.shell.manager_process import wait_for
from tests.shell.plane import Plane, Trainer


@pytest.fixture
def plane(run_dir: Path, free_port: Any) -> Iterator[Plane]:
    with Plane(run_dir, free_port(), job=f"rails-{os.getpid()}") as made:
        made.manager.start()
        yield made
    made.wait_for_no_agents()


def rail(plane: Plane, node: str, name: str) -> dict[str, Any]:
    """Return what the manager says about this rail of this node; empty if it knows nothing about it."""
    plane.facts()
    assert plane._asker is not None
    rows = plane._asker.ask("rails")["rails"]
    return next((row for row in rows if (row["node"], row["rail"]) == (node, name)), {})


def test_what_two_workers_count_arrives_summed_at_the_manager(plane: Plane) -> None:
    one, two = plane.train(0, 1)
    assert rail(plane, "left", "a") == {}
    one.ask("rail a 2 right UP 1000")
    two.ask("rail a 3 right UP 500")
    two.ask("rail b 3 right UP 7")
    wait_for(lambda: rail(plane, "left", "a").get("bytes_out") == 1500, "the sum of both workers")
    found = rail(plane, "left", "a")
    assert [line["peer"] for line in found["lines"]] == ["right"]
    assert found["lines"][0]["pairs"] == 2 and found["round_trip_ns"] == 1000
    assert rail(plane, "left", "b")["bytes_out"] == 7


def test_a_rail_that_goes_down_is_known_while_the_others_carry(plane: Plane) -> None:
    one, _ = plane.train(0, 2)
    for name in ("a", "b"):
        one.ask(f"rail {name} 2 right UP 1000")
    wait_for(lambda: rail(plane, "left", "b").get("bytes_out") == 1000, "both rails")
    one.ask("rail a 2 right DOWN 0")
    wait_for(lambda: rail(plane, "left", "a").get("state") == "down", "the lost rail")
    assert rail(plane, "left", "a")["last_error"] == 110
    assert rail(plane, "left", "b")["state"] == "up"


def test_figures_outlive_a_worker_that_is_killed_and_go_on_with_the_next(plane: Plane) -> None:
    one, two = plane.train(0, 1)
    one.ask("rail a 2 right UP 1000")
    two.ask("rail a 2 right UP 10")
    wait_for(lambda: rail(plane, "left", "a").get("bytes_out") == 1010, "the sum")
    one.command("rail a 2 right UP 5")
    one.answer()
    one.kill()
    wait_for(lambda: rail(plane, "left", "a")["lines"][0]["pairs"] == 1, "the end of a pair")
    assert rail(plane, "left", "a")["bytes_out"] == 1015
    (again,) = plane.train(0)
    again.ask("rail a 2 right UP 100")
    wait_for(lambda: rail(plane, "left", "a")["bytes_out"] == 1115, "the newcomer's bytes")


def test_a_new_agent_is_handed_the_counters_again(plane: Plane) -> None:
    (one,) = plane.train(0)
    one.ask("rail a 2 right UP 1000")
    wait_for(lambda: rail(plane, "left", "a").get("bytes_out") == 1000, "the bytes")
    os.kill(plane.agent_pid("left"), 9)
    wait_for(lambda: one.ask("state")["acknowledged"], "another agent")
    one.ask("rail a 2 right UP 234")
    wait_for(lambda: rail(plane, "left", "a").get("bytes_out") == 1234, "the bytes, told by the new agent")


# ---- breaches of the rules


def said(plane: Plane, rank: int, descriptors: tuple[int, ...], line: socket.socket) -> None:
    data = encode(CountersShown(rank, 1, "rail"), Envelope(plane.job, "left", 7, 1))
    assert local.send(line, data, descriptors)


def agent_log(plane: Plane, trainer: Trainer) -> str:
    logs = [path.read_text(errors="replace") for path in plane.run_dir.rglob("*.log")]
    return "\n".join([trainer.said(), *logs])


def test_counters_of_a_stranger_are_refused(plane: Plane) -> None:
    (one,) = plane.train(0)
    mine = _native.RailCounters()
    mine.open("x", 1, "right", 1).count(bytes_out=99)
    line = local.connect(local.address(plane.job, "left"))
    assert line is not None
    with line:
        said(plane, 0, (mine.fd,), line)
        wait_for(lambda: "spoke for rank 0, which it is not" in agent_log(plane, one), "the refusal")
    assert rail(plane, "left", "x") == {}


def test_a_descriptor_that_is_no_file_of_counters_is_refused_in_a_sentence() -> None:
    rails = Rails()
    read, write = os.pipe()
    for fd, words in ((read, "no memory file"), (9999, "is not open")):
        with pytest.raises(ValueError, match=words):
            rails.add(fd)
    os.close(read)
    os.close(write)


def test_a_process_may_have_a_few_transports_and_no_more() -> None:
    workers = Workers()
    worker = Worker(os.getpid(), -1, 0)
    files = [_native.RailCounters(2) for _ in range(limits.MAX_TRANSPORTS + 1)]
    for number, file in enumerate(files[:-1]):
        file.open(f"rail{number}", 1, "n", 1).set_state(RailState.UP)
        for _ in range(2):
            workers.show_counters(worker, f"transport{number}", file.fd)
    with pytest.raises(ValueError, match="may have 4 transports with rails, another is one more"):
        workers.show_counters(worker, "another", files[-1].fd)
    assert [report.rail for report in workers.rails.read(0)] == ["rail0", "rail1", "rail2", "rail3"]
    files[-1].open("rail0", 1, "n", 1).set_state(RailState.DOWN)
    workers.show_counters(worker, "transport0", files[-1].fd)  # this transport was made anew
    (report,) = [one for one in workers.rails.read(10**12) if one.rail == "rail0"]
    assert (report.state, report.pairs) == (RailState.DOWN, 1)


def test_reports_are_bounded_whatever_a_worker_has_written() -> None:
    rails = Rails()
    file = _native.RailCounters(4)
    counter = file.open("r" * 40, 1, "n" * 80, 1)
    rails.add(file.fd)
    counter.set_state(RailState.DOWN, error=2**31 - 1, round_trip_ns=-5)
    counter.count(bytes_out=2**64 - 1, bytes_in=2**63, hedged=2**64 - 1)
    (report,) = rails.read(0)  # a clock that is behind every time stamp
    assert report.rail == "r" * 31 and report.peer == "n" * 64 and report.age_ms == 0
    assert (report.bytes_out, report.bytes_in, report.hedged) == (2**63 - 1, 2**63 - 1, 2**63 - 1)
    assert (report.round_trip_ns, report.last_error, report.state) == (0, 4095, RailState.DOWN)


def test_a_node_with_very_many_lines_looks_more_seldom() -> None:
    rails = Rails()
    file = _native.RailCounters()
    for number in range(4000):
        file.open("a", number, f"n{number}", 1)
    rails.add(file.fd)
    assert len(rails.read(1_000_000)) == 4000
    assert rails.read(1_000_001) == ()
    assert len(rails.read(1_000_000 + 60_000_000_000)) == 4000
