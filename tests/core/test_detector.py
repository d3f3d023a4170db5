"""Compares the detector with a deliberately simple one, which keeps everything and checks every node each time."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core import limits
from taskd.core.detector import Detector, threshold_ns
from taskd.core.effects import Note
from taskd.core.events import Tick
from taskd.core.limits import MS, SECOND
from taskd.core.messages import Evidence
from taskd.core.records import NODE as TABLE
from taskd.core.records import NodeCause, NodeRecord, NodeState
from taskd.core.types import EvidenceKind, RankState
from tests.core.builders import Node, manager, rank_report

NAMES = ["a", "b", "c"]


@dataclass
class Dumb:
    """The simple detector's memory of one node: everything that was ever heard of it."""

    spawns: bool
    heard_at: int
    gaps: list[int] = field(default_factory=list)
    state: str = "up"
    lost: list[int] = field(default_factory=list)
    errors: list[int] = field(default_factory=list)

    def threshold(self) -> float:
        mean = deviation = 0.0
        for gap in self.gaps:
            surprise = gap - mean
            mean += surprise / 8
            deviation += (abs(surprise) - deviation) / 4
        return max(min(max(round(mean + 4 * deviation), 600 * MS), 1500 * MS), 3 * 100 * MS)

    def falls_silent(self, now: int) -> bool:
        falls = self.state == "up" and now - self.heard_at >= self.threshold()
        if falls:
            self.state = "silent"
        return falls

    def dies(self, now: int, global_errors: list[int], somebody_is_heard: bool, deaf_until: int) -> bool:
        if self.state != "silent":
            return False
        witnesses = [*self.errors, *global_errors, *(self.lost if self.spawns else [])]
        alone_at = self.heard_at + 30 * SECOND
        if self.spawns and not any(at >= self.heard_at for at in self.lost):
            alone_at = max(alone_at, deaf_until + 30 * SECOND)
            if not somebody_is_heard:
                alone_at = self.heard_at + 1800 * SECOND
        if now >= alone_at or any(now - at <= 10 * SECOND for at in witnesses):
            self.state = "lost"
        return self.state == "lost"


def look(all_of_them: list[Dumb], now: int, global_errors: list[int], deaf_until: int) -> list[tuple[str, str]]:
    found = [(name, "SUSPECT") for name, one in zip(NAMES, all_of_them, strict=True) if one.falls_silent(now)]
    heard = any(one.state == "up" for one in all_of_them)
    pairs = zip(NAMES, all_of_them, strict=True)
    return found + [(name, "DEAD") for name, one in pairs if one.dies(now, global_errors, heard, deaf_until)]


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["hear", "hear", "hear", "lost", "error", "error at large", "tick", "tick"]),
        st.integers(0, 2),
        st.sampled_from([1, 30, 100, 100, 100, 250, 700, 1600, 5000, 11000, 29000, 900_000]),
    ),
    max_size=60,
)


@given(ACTIONS, st.tuples(st.booleans(), st.booleans(), st.booleans()))
def test_it_agrees_with_the_dumb_one(actions: list[tuple[str, int, int]], spawns: tuple[bool, bool, bool]) -> None:
    now = SECOND
    detector = Detector()
    nodes = [NodeRecord(name, spawns=s, interval_ns=100 * MS) for name, s in zip(NAMES, spawns, strict=True)]
    for node in nodes:
        detector.watch(node, now)
    dumb = [Dumb(s, now) for s in spawns]
    at_large: list[int] = []
    deaf_until = -1

    for what, which, wait_ms in actions:
        now += wait_ms * MS
        node, other = nodes[which], dumb[which]
        if what == "hear" and other.state != "lost":
            if node.state is NodeState.SILENT:
                if all(one.state != "up" for one in dumb):
                    deaf_until = now
                node.state = TABLE.after(node.state, NodeCause.HEARD)
                detector.watch(node, now)
                other.state, other.lost, other.errors = "up", [], []
            else:
                detector.heard(node, now)
                other.gaps.append(now - other.heard_at)
            other.heard_at = now
        elif what == "lost":
            detector.connection_lost(node, now)
            other.lost.append(now)
        elif what == "error":
            detector.collective_error(node, "a rank saw it", "elsewhere", now)
            other.errors.append(now)
        elif what == "error at large":
            detector.collective_error(None, "a rank saw it", "elsewhere", now)
            at_large.append(now)
        else:
            found = []
            while (verdict := detector.verdict(now, -1, "", True)) is not None:
                judged = nodes[NAMES.index(verdict.node)]
                found.append((verdict.node, verdict.state.name))
                if verdict.state is RankState.SUSPECT:
                    judged.state = TABLE.after(judged.state, NodeCause.SILENT)
                    detector.suspect(judged, now)
                else:
                    judged.state = TABLE.after(judged.state, NodeCause.JUDGED)
                    detector.forget(judged)
            assert sorted(found) == sorted(look(dumb, now, at_large, deaf_until))


def test_the_threshold_is_learned_within_its_bounds() -> None:
    node = NodeRecord("a", spawns=True, interval_ns=100 * MS)
    detector = Detector()
    detector.watch(node, 0)
    for beat in range(1, 200):
        detector.heard(node, beat * 100 * MS)
    assert threshold_ns(node) == limits.SILENCE_FLOOR_NS
    now = 20 * SECOND
    for beat in range(200):
        now += (900 if beat % 2 else 100) * MS
        detector.heard(node, now)
    assert threshold_ns(node) == limits.SILENCE_CEILING_NS
    node.interval_ns = 2 * SECOND
    assert threshold_ns(node) == 6 * SECOND


def test_a_side_agent_is_not_given_up_while_others_make_steps() -> None:
    node = NodeRecord("a", spawns=False, interval_ns=100 * MS)
    detector = Detector()
    detector.watch(node, 0)
    assert detector.verdict(2 * SECOND, -1, "", True) is not None
    node.state = NodeState.SILENT
    detector.suspect(node, 2 * SECOND)
    detector.connection_lost(node, 2 * SECOND)
    assert detector.verdict(2 * SECOND, -1, "", True) is None
    assert detector.verdict(31 * SECOND, 30 * SECOND, "b", True) is None
    assert detector.verdict(50 * SECOND, 49 * SECOND, "b", True) is None
    dead = detector.verdict(70 * SECOND, 49 * SECOND, "b", True)
    assert dead is not None and dead.state is RankState.DEAD
    assert "too long" in dead.reason


def test_a_beat_costs_no_heap_entry() -> None:
    node = NodeRecord("a", spawns=True, interval_ns=100 * MS)
    detector = Detector()
    detector.watch(node, 0)
    for beat in range(1, 1000):
        detector.heard(node, beat * 100 * MS)
        detector.verdict(beat * 100 * MS, -1, "", True)
    assert len(detector._checks) <= 2


@pytest.mark.parametrize("first", ["the evidence", "the silence"])
@pytest.mark.parametrize(
    ("kind", "buried"),
    [
        (EvidenceKind.COLLECTIVE_LATE, False),
        (EvidenceKind.COLLECTIVE_TIMEOUT, False),
        (EvidenceKind.COLLECTIVE_ERROR, True),
    ],
)
def test_who_waits_is_no_witness_for_silence(kind: EvidenceKind, buried: bool, first: str) -> None:
    """A starved node is silent, and the ranks that wait for it report this. That is one silence, seen twice."""
    core, a, b = manager(4), Node("a"), Node("b")
    for node, held in ((a, (0, 1)), (b, (2, 3))):
        core.step(SECOND, node.hello())
        core.step(SECOND, node.report(*(rank_report(rank, acknowledged=False) for rank in held), full=True))
    said_at = SECOND + (100 if first == "the evidence" else 900) * MS
    notes: list[Note] = []
    for now in range(SECOND, 9 * SECOND, 100 * MS):
        events = [a.report(), Tick()]
        if now == said_at:
            events.append(a.says(Evidence(kind, -1, 1, 0, 0, "as never before", "allreduce #812", 5_000)))
        notes += [effect for event in events for effect in core.step(now, event) if isinstance(effect, Note)]
    said = [note.kind for note in notes]
    assert "suspect" in said and said.count("lost") == buried, [note.text for note in notes]
    assert bool(core.incidents(9 * SECOND)) == buried
    core.step(9 * SECOND, b.report(rank_report(2), rank_report(3), full=True))
    states = {row["state"] for row in core.facts(9 * SECOND)["ranks"]}
    assert states == {"alive"} or buried, "it lives"
