"""The rails machine: which rails count as lost, which are lent and come back, and which invariants always hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core import limits
from taskd.core.effects import Note
from taskd.core.events import RailVerdict, RailWish, Restarted, Tick
from taskd.core.limits import MS, SECOND
from taskd.core.manager import Manager
from taskd.core.messages import RailReport, Report
from taskd.core.rails.judgement import LineJudge
from taskd.core.rails.records import Rail
from taskd.core.types import RailFinding, RailState
from tests.core.builders import Node, manager, rank_report
from tests.core.rail_job import UP, Job, wish


def test_a_healthy_job_is_told_nothing_and_journals_nothing() -> None:
    job = Job()
    job.run(60 * SECOND)
    assert not job.told and not job.core.incidents(job.now)
    assert not any(isinstance(event, RailVerdict) for _, event in job.journal)


def test_a_dead_process_is_no_rail_fault() -> None:
    """Its connections end on all rails, one after the other."""
    job = Job()
    job.down("red", "ab", "ba")
    job.run(100 * MS)
    job.down("blue", "ab", "ba")
    job.run(limits.RAIL_ALL_CONFIRM_NS - SECOND)
    job.up("blue", "ab", "ba")
    job.up("red", "ab", "ba")
    job.run(10 * SECOND)
    assert not job.core.incidents(job.now) and not job.told


def test_a_process_that_dies_while_one_rail_is_left_is_no_fault_of_that_rail() -> None:
    """A rail without connections loses none. So the other rail goes down more often, through no fault of its own."""
    job = Job()
    job.down("red", "ab", "ba")
    job.run(2 * SECOND)
    job.down("blue", "ab", "ba")
    job.up("blue", "ab", "ba")
    job.run(5 * SECOND)
    assert [one["reason"].split(" of ")[0] for one in job.core.incidents(job.now)] == ["rail red"]
    assert job.core.rails(job.now)["rails"][0]["state"] == "up"


def test_groups_that_were_made_anew_without_a_rail_do_not_use_it() -> None:
    """Its interface was removed. The old groups' counters remain for a while, without pairs and without a state."""
    job = Job()
    job.down("red", "ab", "ba")
    job.run(2 * SECOND)
    job.change("red", "ab", "ba", state=RailState.UP, pairs=0, pairs_up=0, pairs_moved=0)
    job.run(5 * SECOND)
    assert job.uses()["red@a"] == "borrowed" and "down" in job.states()
    for pair in ("ab", "ba"):
        del job.lines[pair[0], "red", pair[1]]  # reported for a while, and then no longer
    job.run(limits.RAIL_STALE_NS + limits.RAIL_VERIFY_NS + 5 * SECOND)
    assert set(job.uses()) == {"blue@a", "blue@b"} and not job.open()
    texts = [effect.text for effect in job.effects if isinstance(effect, Note)]
    assert "rail red of a to b: nobody uses it any more" in texts
    assert any("healed" in text and "what was lost of it is not used any more" in text for text in texts)


def test_a_single_line_among_many_is_watched_and_not_lent() -> None:
    job = Job("abcd")
    job.down("red", "ab", "ba")
    job.run(2 * SECOND)
    assert set(job.uses().values()) == {"in use"} and "down" in job.states() and not job.told
    assert job.open()[0]["strategy"] == "borrow"
    job.up("red", "ab", "ba")
    job.run(5 * SECOND)
    assert job.states() == {"up"} and not job.open()


def test_a_rail_of_one_node_is_lent_there_alone() -> None:
    job = Job("abcd")
    job.down("red", "ab", "ac", "ad", "ba", "ca", "da")
    job.run(2 * SECOND)
    assert [name for name, use in job.uses().items() if use == "borrowed"] == ["red@a"]
    assert job.orders["a"].out == ("red",) and set(job.orders) == {"a"}


def test_a_rail_that_many_nodes_lose_is_one_verdict_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A report also costs a look at its own lines only, not at the lines of all nodes."""
    nodes = [f"n{at:02}" for at in range(24)]
    job = Job(nodes)
    pairs = [(one, other) for one in nodes for other in nodes if one != other]
    looks, reported = [], 0
    look = LineJudge._line
    monkeypatch.setattr(LineJudge, "_line", lambda *words: looks.append(words[1]) or look(*words))
    job.down("red", *pairs)
    job.run(2 * SECOND)
    job.up("red", *pairs)
    job.run(10 * SECOND)
    reported = 120 * len(pairs)
    assert job.well() and len(looks) < 1.2 * reported
    found = [event for _, event in job.journal if isinstance(event, RailVerdict) and event.peers]
    lost = [event for event in found if event.finding is RailFinding.LOST]
    assert sorted(event.nodes[0] for event in lost) == nodes
    assert all(len(event.peers) == len(nodes) - 1 for event in lost)
    assert len(found) <= 4 * len(nodes)
    text = next(effect.text for effect in job.effects if isinstance(effect, Note) and "is lost" in effect.text)
    assert text.startswith("rail red of n00 to n01, n02, n03 and 20 more is lost: 1 of 1 pairs")


def test_the_cost_is_what_others_carried() -> None:
    job = Job()
    job.down("red", "ab", "ba")
    job.change("red", "ab", hedged=7, retransmitted=9)
    job.run(1 * SECOND)
    job.up("red", "ab", "ba")
    job.change("red", "ab", hedged=12)
    job.run(10 * SECOND)
    (incident,) = job.core.incidents(job.now)
    assert incident["outcome"] == "healed" and incident["cost"]["hedged_frames"] == 5
    beats = incident["duration_ms"] // 100
    assert 2 * (beats - 8) << 20 <= incident["cost"]["borrowed_bytes"] <= 2 * (beats + 8) << 20


def test_the_back_off_is_bounded_and_forgiven() -> None:
    rail = Rail("a", "red")
    at = 0
    for _ in range(20):
        at += limits.RAIL_GATHER_NS
        rail.worsen(at, unproved=True)
    assert rail.back_off_ns == limits.RAIL_BACK_OFF_MAX_NS
    rail.returned_at = at
    rail.worsen(at + limits.RAIL_STEADY_NS, unproved=False)
    assert rail.back_off_ns == limits.RAIL_QUIET_NS


def test_a_line_that_nobody_uses_any_more_is_forgotten() -> None:
    job = Job("abc")
    job.down("red", "ab", "ba")
    job.run(1 * SECOND)
    for pair in ("ab", "ba"):
        for rail in job.rails:
            del job.lines[pair[0], rail, pair[1]]
    job.run(limits.RAIL_STALE_NS + 70 * SECOND)
    assert not job.open() and job.states() == {"up"} and set(job.uses().values()) == {"in use"}


@pytest.mark.parametrize("rails", [("red",), ()])
def test_the_only_rail_is_never_taken_out(rails: tuple[str, ...]) -> None:
    job = Job(rails=rails)
    refused = job.core.rail_wish("red", "", True)
    assert isinstance(refused, str) and ("only one" in refused or "no rail" in refused)
    for rail in rails:
        job.down(rail, "ab", "ba")
    job.run(10 * SECOND)
    assert not job.told


@pytest.mark.parametrize("alike", [True, False])
def test_two_rails_are_not_taken_out_from_two_ends(alike: bool) -> None:
    """A rail whose one end rests carries nothing. So red out at a and blue out at b stop both, whatever their names."""
    job = Job()
    blue = "blue" if alike else "azure"
    if not alike:
        lines = {key: line for key, line in job.lines.items() if key[0] == "a"}
        for name in ("crimson", "azure"):
            lines["b", name, "a"] = replace(UP, rail=name, peer="a")
        job.lines = lines
        job.run(3 * limits.RAIL_STALE_NS)
    wish(job, "red", "a", out=True)
    job.run(1 * SECOND)
    refused = job.core.rail_wish(blue, "b", True)
    assert refused == f"rail {blue} is the only one that carries between b and a: it stays in use"
    wish(job, "red", "a", out=False)
    job.run(10 * SECOND)
    assert isinstance(job.core.rail_wish(blue, "b", True), RailWish)


def test_a_verdict_that_no_longer_fits_changes_nothing() -> None:
    job = Job()
    facts = job.core.rails(job.now)
    for finding in RailFinding:
        job.step(RailVerdict(finding, "red", ("nowhere",), ("b",), "from a journal"))
    job.step(RailWish("red", (), True))
    assert job.core.rails(job.now)["change"] is None or not job.core.rails(job.now)["change"]["under_way"]
    assert [row for row in job.core.rails(job.now)["rails"] if row["node"] != "nowhere"] == facts["rails"]


# ---- whatever arrives ---------------------------------------------------------------------------------------------

reports = st.builds(
    RailReport,
    rail=st.sampled_from(["red", "blue", "green"]),
    peer=st.sampled_from(["a", "b", "c", "nowhere"]),
    state=st.sampled_from(list(RailState)),
    age_ms=st.integers(0, 10_000),
    pairs=st.integers(0, 3),
    pairs_up=st.integers(0, 3),
    pairs_moved=st.integers(0, 3),
    pairs_starved=st.integers(0, 3),
    bytes_out=st.integers(0, 1 << 30),
    bytes_in=st.integers(0, 1 << 30),
    round_trip_ns=st.just(1),
    downs=st.integers(0, 3),
    hedged=st.integers(0, 3),
    retransmitted=st.integers(0, 3),
    duplicates=st.just(0),
    last_error=st.sampled_from([0, 100, 4_000]),
)
beats = st.tuples(
    st.sampled_from(["a", "b"]),
    st.lists(reports, max_size=6),
    st.integers(0, 5),
    st.integers(0, 5),
    st.sampled_from(["", "unsupported"]),
)
wishes = st.tuples(st.sampled_from(["red", "blue", "?"]), st.sampled_from(["", "a", "x"]), st.booleans())
actions = st.lists(
    st.tuples(
        st.sampled_from([1, 50, 100, 300, 3_000, 70_000]),
        st.one_of(beats, beats, beats, wishes, st.sampled_from(["tick", "restart", "goodbye"])),
    ),
    max_size=40,
)


def act(job: Job, what: Any) -> None:
    if what == "tick":
        job.step(Tick())
    elif what == "restart":
        job.step(Restarted())
    elif what == "goodbye":
        job.step(job.nodes["b"].hello())
    elif len(what) == 3:
        wish = job.core.rail_wish(*what)
        if isinstance(wish, RailWish):
            job.step(wish)
    else:
        name, lines, holds, followed, trouble = what
        rank = rank_report("ab".index(name), rail_order=followed, rail_trouble=trouble)
        job.step(job.nodes[name].says(Report(True, 1, (rank,), 0, tuple(lines), holds)))


@given(actions)
@settings(max_examples=80)
def test_rails_hold_their_promises(doings: list[tuple[int, Any]]) -> None:
    """Nothing raises, numbers only grow, only one change runs at a time, and a replay decides the same."""
    job = Job()
    for wait_ms, what in doings:
        job.now += wait_ms * MS
        act(job, what)
        job.core.rails(job.now)
        job.core.incidents(job.now)
    numbers = [order.number for _, _, order in job.told]
    assert all(order.number <= max(numbers) for order in job.orders.values())
    for name in job.nodes:
        mine = [order.number for _, node, order in job.told if node == name]
        assert mine == sorted(mine)
    again: Manager = manager(2, 2)
    replayed = [effect for at, event in job.journal for effect in again.replay(at, event)]
    assert replayed == job.effects


@given(actions)
@settings(max_examples=12)
def test_whatever_was_every_rail_comes_back(doings: list[tuple[int, Any]]) -> None:
    """From any state on, all lines are up and ranks follow. Then each rail is used again, or an operator has it out."""
    job = Job(recover=False)  # a repair would wait for ranks that this test does not simulate
    for wait_ms, what in doings:
        job.now += wait_ms * MS
        act(job, what)
    job.nodes = {name: Node(name, life=9, slots=1) for name in job.nodes}
    for node in job.nodes.values():
        job.step(node.hello(world_size=2))
    end = job.now + limits.RAIL_STALE_NS + limits.RAIL_IDLE_NS + 2 * limits.RAIL_BACK_OFF_MAX_NS
    while job.now < end and not job.well():
        job.run(10 * SECOND)
    unwell = [row for row in job.core.rails(job.now)["rails"] if row["state"] != "up" or row["use"] != "in use"]
    assert job.well(), f"{unwell} {job.open()}"


def test_rails_of_different_ranks_are_not_compared_by_number() -> None:
    """Half of the ranks have no blue rail, so blue is complete with fewer pairs. A dead rank is missing on both."""
    job = Job()
    job.change("red", "ab", "ba", pairs=4, pairs_up=4, pairs_moved=4)
    job.change("blue", "ab", "ba", pairs=2, pairs_up=2, pairs_moved=2)
    job.run(5 * SECOND)
    job.change("red", "ab", "ba", pairs_up=3)
    job.change("blue", "ab", "ba", pairs_up=1)
    job.run(5 * SECOND)
    assert job.states() == {"up"} and not job.core.incidents(job.now)
    job.change("blue", "ab", "ba", pairs_up=0)
    job.run(5 * SECOND)
    assert job.uses()["blue@a"] == "borrowed" == job.uses()["blue@b"]


def test_a_rail_that_is_gone_is_no_measure_for_the_others() -> None:
    job = Job()
    job.lines["a", "green", "b"] = replace(UP, rail="green")
    job.run(SECOND)
    del job.lines["a", "green", "b"]
    job.run(3 * limits.RAIL_STALE_NS)
    job.change("red", "ab", "ba", pairs=2)
    job.change("blue", "ab", "ba", pairs=2)  # a rank died: nothing says that green still connects it
    job.run(5 * SECOND)
    assert "green@a" not in job.uses() and not job.core.incidents(job.now)
