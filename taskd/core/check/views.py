"""What has been seen of each node, by aspect: good or bad, by which partner, in which round.

An aspect is one way in which a node can be at fault. A test gives at most one observation of a node in each aspect:

- REACH: the two can exchange data over some rail;
- RAIL: they can over this rail;
- PACE: this rail is not slow, as the partner saw it;
- COMPUTE, MEMORY: the node's work was not slow, as the partner saw it;
- WORD: the two do not contradict each other, about a rail, the product, the compute or the memory.

A test that only one node has told of, and which went well by its word, is no observation: the other report was lost.
A partner that is slow itself sees everything late. So its view of another node's work does not make that node a liar.

This module does NOT say whose fault a bad observation is. opinions.py does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from taskd.core.check.facts import SelfTest, Side, Way, Work
from taskd.core.check.readings import Test, apart, denied
from taskd.core.check.scale import Scale, scale


class Kind(Enum):
    """In which way a node can be at fault."""

    REACH = "reach"
    RAIL = "rail"
    PACE = "pace"
    COMPUTE = "compute"
    MEMORY = "memory"
    WORD = "word"


class Aspect(NamedTuple):
    """A kind, and the rail where there is one. For words: what they are about."""

    kind: Kind
    rail: str = ""


REACH, COMPUTE, MEMORY = Aspect(Kind.REACH), Aspect(Kind.COMPUTE), Aspect(Kind.MEMORY)
PRODUCT = "product"


@dataclass(frozen=True, slots=True)
class Seen:
    """One observation of a node."""

    test: Test
    partner: int
    good: bool


class Views:
    """All observations of a check so far."""

    def __init__(
        self, tests: Sequence[Test], own: Mapping[int, Sequence[SelfTest]], liars: Collection[int] = frozenset()
    ) -> None:
        """`liars`: nodes whose times say nothing about what is usual."""
        self.tests = tests
        self.own = own
        self.by: dict[Aspect, dict[int, list[Seen]]] = {REACH: {}, COMPUTE: {}, MEMORY: {}}
        self.scales: dict[Aspect, Scale] = {}
        self._slow_ones: set[tuple[int, int]] = set()
        self.scales = self._scales(liars)
        self._slow_ones = {(test.order, node) for test in tests for node in test.nodes if self._late(test, node)}
        self.met: dict[int, dict[int, int]] = {}
        """How often each node was tested with each other one."""
        self.vouched: dict[int, int] = {}
        """The last turn in which a partner says that all was well with a node, whose own report was lost."""
        self.vouchers: dict[int, set[int]] = {}
        for test in tests:
            for node in test.nodes:
                if test.side(node) is None and _well(test):
                    self.vouched[node] = test.order
                    self.vouchers.setdefault(node, set()).add(test.partner(node))
                met = self.met.setdefault(node, {})
                met[test.partner(node)] = met.get(test.partner(node), 0) + 1
                for aspect, good in self._observe(test, node):
                    self.by.setdefault(aspect, {}).setdefault(node, []).append(Seen(test, test.partner(node), good))

    def of(self, node: int, aspect: Aspect) -> list[Seen]:
        """The observations of a node, in the order of their tests."""
        return self.by.get(aspect, {}).get(node, [])

    def claims_slow(self, node: int, aspect: Aspect, tests: Collection[Test]) -> bool:
        """Whether the node itself calls its work slow, each time."""
        usual = self.scales.get(aspect)
        works = [side.own for test in tests if (side := test.side(node)) is not None]
        works += [one.work for one in self.own.get(node, ())]
        return usual is not None and bool(works) and all(usual.slow(_time(work, aspect)) for work in works)

    def time_ns(self, seen: Seen, node: int, aspect: Aspect) -> int:
        """How long it took, as the partner saw it. 0: not known."""
        if aspect.kind is Kind.PACE:
            return seen.test.seen_ns(node, aspect.rail)
        side = seen.test.side(seen.partner)
        return _time(side.peer, aspect) if side is not None and side.peer is not None else 0

    def _scales(self, liars: Collection[int]) -> dict[Aspect, Scale]:
        """What is usual in each aspect that is a time: from the best time of each node, as others saw it. A time that
        the two contradict each other about is left out: it would be the scale for all."""
        best: dict[Aspect, dict[int, int]] = {}
        for test in self.tests:
            if any(node in liars for node in test.nodes):
                continue
            odds = self.odds(test)
            for node in test.nodes:
                for aspect, time_ns in self._times(test, node):
                    if subject(aspect) not in odds:
                        known = best.setdefault(aspect, {})
                        known[node] = min(time_ns, known.get(node, time_ns))
        found = {aspect: scale(times.values()) for aspect, times in best.items()}
        return {aspect: one for aspect, one in found.items() if one is not None}

    def _times(self, test: Test, node: int) -> Iterator[tuple[Aspect, int]]:
        """How long each thing took in a test, as the node's partner saw it."""
        for rail in test.lines:
            if (time_ns := test.seen_ns(node, rail)) > 0:
                yield Aspect(Kind.PACE, rail), time_ns
        side = test.side(test.partner(node))
        if side is not None and side.peer is not None and test.whole:
            for aspect in (COMPUTE, MEMORY):
                if (time_ns := _time(side.peer, aspect)) > 0:
                    yield aspect, time_ns

    def _late(self, test: Test, node: int) -> bool:
        """Whether this node was slow in this test: by its own word, or by that of a partner that is not slow itself."""
        own, seen = test.side(node), test.side(test.partner(node))
        if own is not None and self._slow(own.own):
            return True
        return seen is not None and seen.peer is not None and self._slow(seen.peer) and not self._slow(seen.own)

    def _slow(self, work: Work) -> bool:
        scales = [(aspect, self.scales[aspect]) for aspect in (COMPUTE, MEMORY) if aspect in self.scales]
        return any(usual.slow(_time(work, aspect)) for aspect, usual in scales)

    def _observe(self, test: Test, node: int) -> Iterator[tuple[Aspect, bool]]:
        """The aspects in which this test shows something of this node."""
        if not test.whole:
            if not _well(test):
                yield REACH, False
                for rail in test.lines:
                    yield Aspect(Kind.RAIL, rail), False
            return
        if test.lines:
            yield REACH, test.passed
        for rail, line in test.lines.items():
            yield Aspect(Kind.RAIL, rail), line.ok
        odds = self.odds(test)
        for aspect, time_ns in self._times(test, node):
            if aspect in self.scales:
                slow = self.scales[aspect].slow(time_ns)
                if slow or subject(aspect) not in odds:  # what a liar says may accuse, but it does not clear
                    yield aspect, not slow
        for rail, line in test.lines.items():
            if line.ok or line.odds:
                yield Aspect(Kind.WORD, _rail_subject(rail)), not line.odds
        own, seen = test.side(node), test.side(test.partner(node))
        assert own is not None and seen is not None
        if seen.peer is not None:
            yield Aspect(Kind.WORD, PRODUCT), PRODUCT not in odds
        timely = seen.peer is not None and (test.order, test.partner(node)) not in self._slow_ones
        for aspect in (COMPUTE, MEMORY):
            if timely or subject(aspect) in odds:
                yield Aspect(Kind.WORD, subject(aspect)), subject(aspect) not in odds

    def slow_in(self, test: Test, node: int) -> bool:
        """Whether this node was slow itself in this test, so that it saw its partner late."""
        return (test.order, node) in self._slow_ones

    def odds(self, test: Test) -> dict[str, str]:
        """What the two nodes of a test contradict each other about, and how."""
        found = {_rail_subject(rail): f"of rail {rail} {line.odds}" for rail, line in test.lines.items() if line.odds}
        for node in test.nodes:
            if denied(test, node):
                found[PRODUCT] = f"one calls the product of node {node} right, the other wrong"
            own, seen = test.side(node), test.side(test.partner(node))
            if own is None or seen is None or (test.order, test.partner(node)) in self._slow_ones:
                continue
            for aspect in (COMPUTE, MEMORY):
                what = aspect.kind.value
                if seen.peer is not None and _differ(own, seen.peer, aspect):
                    found[what] = f"node {node} says that its {what} took another time than its partner saw"
        return found


def subject(aspect: Aspect) -> str:
    """What a word about this aspect is about."""
    return _rail_subject(aspect.rail) if aspect.rail else aspect.kind.value


def _rail_subject(rail: str) -> str:
    return f"rail {rail}"


def _time(work: Work, aspect: Aspect) -> int:
    return work.compute_ns if aspect.kind is Kind.COMPUTE else work.memory_ns


def _differ(own: Side, seen: Work, aspect: Aspect) -> bool:
    times = _time(own.own, aspect), _time(seen, aspect)
    return min(times) > 0 and apart(*times)


def _well(test: Test) -> bool:
    """Whether a test that one node at most has told of went well by its word."""
    sides = [side for side in test.sides if side is not None]
    return any(leg.sent is Way.OK and leg.received is Way.OK for side in sides for leg in side.legs)
