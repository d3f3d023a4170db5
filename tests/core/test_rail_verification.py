"""A rail that was put back: what proves it, what takes it out again, and what does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from taskd.core import limits
from taskd.core.limits import MS, SECOND
from taskd.core.types import RailState
from tests.core.builders import Node
from tests.core.rail_job import UP, Job, wish


def test_only_bytes_on_every_line_bring_a_rail_back() -> None:
    """One of a's two lines moves nothing. The other one carries far more than small messages can explain."""
    job = Job("abc")
    job.down("red", "ab", "ba", "ac", "ca")
    job.run(1 * SECOND)
    job.up("red", "ab", "ba", "ac", "ca")
    job.change("red", "ac", pairs_moved=0)
    original = job.beat

    def beat(name: str, node: Node, rank: int, traffic: int) -> None:
        before = job.lines["a", "red", "c"]
        original(name, node, rank, traffic)
        job.lines["a", "red", "c"] = before

    job.beat = beat  # type: ignore[method-assign]
    job.run(12 * SECOND, traffic=16 << 20)
    assert job.uses()["red@a"] == "borrowed", "rolled back"
    assert any("out again" in order.reason for _, _, order in job.told)
    job.change("red", "ac", pairs_moved=1)
    job.beat = original  # type: ignore[method-assign]
    job.run(30 * SECOND)
    assert set(job.uses().values()) == {"in use"} and not job.open()


def returning(**changes: Any) -> Job:
    """Return a job with two pairs of ranks between a and b. Red was lost and comes back with these changes."""
    job = Job()
    job.down("red", "ab", "ba")
    job.run(1 * SECOND)
    job.change("blue", "ab", "ba", pairs=2, pairs_up=2, pairs_moved=2)
    job.change("red", "ab", "ba", **{"state": RailState.UP, "pairs": 2, "pairs_up": 2, "pairs_moved": 1, **changes})
    return job


def test_pairs_that_have_little_to_say_hold_nothing_up() -> None:
    """Most pairs of a ring are so. The line has carried enough for all pairs, no pair sends over other rails only."""
    job = returning()
    job.run(20 * SECOND, traffic=16 << 20)
    assert job.uses()["red@a"] == "in use" and not job.open()
    words = job.core.rails(job.now)["change"]["words"]
    assert words == "bytes flow on every line; 2 pairs have little to say to each other"


def test_pairs_of_which_nothing_is_known_are_waited_for() -> None:
    job = returning()
    job.run(20 * SECOND, traffic=1 << 10)
    assert job.uses()["red@a"] == "returning"
    job.run(limits.RAIL_IDLE_NS, traffic=1 << 10)
    assert job.uses()["red@a"] == "in use" and not job.open()
    assert job.core.rails(job.now)["change"]["words"] == "it stays, unproved: 1 of 2 pairs of a and b use it"


def test_pairs_that_send_over_others_alone_take_the_rail_out_again() -> None:
    job = returning(pairs_starved=1)
    job.run(10 * SECOND, traffic=16 << 20)
    assert job.uses()["red@a"] == "borrowed" == job.uses()["red@b"]
    words = job.core.rails(job.now)["change"]["words"]
    assert words == "out again: 1 of 2 pairs of a and b sends over others alone"
    rested = job.core.rails(job.now)["rails"][1]["back_off_ms"] * MS
    assert rested == 2 * limits.RAIL_QUIET_NS, "it rests longer"
    job.change("red", "ab", "ba", pairs_moved=2, pairs_starved=0)
    job.run(30 * SECOND)
    assert set(job.uses().values()) == {"in use"} and not job.open()


def test_a_line_whose_other_end_rests_proves_nothing_and_takes_no_rail_out() -> None:
    job = Job()
    wish(job, "red", "", out=True)
    job.run(1 * SECOND)
    wish(job, "red", "a", out=False)
    job.change("red", "ab", "ba", pairs_moved=0, pairs_starved=1)
    job.run(20 * SECOND, traffic=16 << 20)
    assert job.uses()["red@a"] == "in use" and job.uses()["red@b"] == "out" and not job.open()
    assert job.core.rails(job.now)["change"]["words"] == "it stays, unproved: it rests at the other end, b"


def test_the_other_end_may_have_another_name() -> None:
    """Node a calls it red and b calls it green. Only the transport knows which rail of b is a's red."""
    job = Job(rails=("red", "blue", "white"))
    job.lines = {key: line for key, line in job.lines.items() if key[:2] != ("b", "red")}
    job.lines["b", "green", "a"] = replace(UP, rail="green", peer="a")
    job.run(3 * limits.RAIL_STALE_NS)  # until b's former lines are forgotten
    wish(job, "green", "b", out=True)
    job.run(1 * SECOND)
    wish(job, "red", "a", out=True)
    job.run(1 * SECOND)
    wish(job, "red", "a", out=False)
    job.change("red", "ab", pairs_moved=0, pairs_starved=1)
    job.run(20 * SECOND, traffic=16 << 20)
    assert job.uses()["red@a"] == "in use" and job.uses()["green@b"] == "out" and not job.open()


def test_a_rank_that_cannot_put_a_rail_back_is_asked_again_after_the_back_off() -> None:
    job = Job()
    wish(job, "red", "", out=True)
    job.run(1 * SECOND)
    job.trouble = "no-op: others have carried 9 bytes, rail red none"
    wish(job, "red", "", out=False)
    job.run(1 * SECOND)
    assert set(job.uses().values()) == {"in use", "borrowed"} and job.orders["a"].out == ("red",)
    assert "cannot follow: no-op" in job.core.rails(job.now)["change"]["words"]
    told = len(job.told)
    job.run(limits.RAIL_QUIET_NS)
    assert len(job.told) == told, "not at once"
    job.trouble = ""
    job.run(30 * SECOND)
    assert set(job.uses().values()) == {"in use"} and not job.open()


def test_what_a_transport_knows_of_a_switch_is_told() -> None:
    job = Job()
    job.words = "others have carried 9 bytes, rail red 0"
    wish(job, "red", "", out=True)
    job.run(1 * SECOND)
    words = job.core.rails(job.now)["change"]["words"]
    assert words == "every rank has followed; rank 0 (and 1 more): others have carried 9 bytes, rail red 0"


def test_what_was_sent_before_the_last_rank_had_followed_counts() -> None:
    """There was nothing more to send."""
    job = returning(pairs_moved=2)
    job.run(5 * SECOND, traffic=0)
    assert job.uses()["red@a"] == "in use"
    assert job.core.rails(job.now)["change"]["words"] == "bytes flow on every line and rank"


def test_an_idle_job_proves_nothing_and_keeps_the_rail() -> None:
    job = Job()
    job.down("red", "ab", "ba")
    job.run(1 * SECOND)
    job.change("red", "ab", "ba", state=RailState.UP, pairs_up=1)
    job.run(20 * SECOND, traffic=0)
    assert job.uses()["red@a"] == "returning" and len(job.open()) == 1
    job.run(limits.RAIL_IDLE_NS, traffic=0)
    assert job.uses()["red@a"] == "in use" and not job.open()
