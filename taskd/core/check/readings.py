"""One test, read: what worked over each rail, in what its two ends contradict each other, and how long it took.

A transfer is two words, the sender's and the receiver's. It worked if both say so. They contradict each other if

- the sender has an acknowledgement of what the receiver says it never got right;
- the receiver has got it right, the way back works as well, and the sender says it failed. If the way back does not
  work, the acknowledgement was lost, and nobody lies;
- both say it worked, and their times differ by more than CHECK_AT_ODDS.

The same holds for the work: the partner's verdict on a product against that of the node, and the time until the answer
against the time that the node says it took. A node is judged by what its partners see of it, never by its own word
alone. One test proves nothing: opinions.py weighs many."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from taskd.core import limits
from taskd.core.check.facts import Leg, Outcome, Side, Way
from taskd.core.check.pairs import Pair

_SILENT = Leg("", Way.LATE, Way.LATE)


@dataclass(frozen=True, slots=True)
class Line:
    """One rail in one test."""

    ok: bool
    corrupt: bool
    odds: str  # in what the two ends contradict each other; empty: in nothing
    seen_ns: tuple[int, int]  # how long it took with the first node, as the second one saw it, and the other way round


@dataclass(frozen=True, slots=True)
class Test:
    """One test of two nodes."""

    __test__ = False  # for pytest, which collects classes of this name

    round: int
    order: int  # counts the turns of the whole check
    nodes: Pair
    sides: tuple[Side | None, Side | None]
    lines: dict[str, Line]

    @property
    def whole(self) -> bool:
        """Whether both nodes have told of it."""
        return None not in self.sides

    @property
    def passed(self) -> bool:
        """Whether both say that they can exchange data, over some rail at least."""
        return any(line.ok for line in self.lines.values())

    def partner(self, node: int) -> int:
        """The other node."""
        return self.nodes[1] if self.nodes[0] == node else self.nodes[0]

    def side(self, node: int) -> Side | None:
        """What this node says."""
        return self.sides[self.nodes.index(node)]

    def seen_ns(self, node: int, rail: str) -> int:
        """How long this rail took with this node, as its partner saw it. 0: not known."""
        line = self.lines.get(rail)
        return line.seen_ns[self.nodes.index(node)] if line is not None and line.ok else 0


def read(
    outcome: Outcome, rails: tuple[Collection[str] | None, Collection[str] | None], place: tuple[int, int]
) -> Test:
    """Read one test. `rails`: those that each node has by its own word, if any. `place`: its round and turn."""
    first, second = outcome.sides
    legs = [{leg.rail: leg for leg in side.legs[: limits.MAX_RAILS]} if side else {} for side in outcome.sides]
    named = [set(own) if own is not None else set(told) for own, told in zip(rails, legs, strict=True)]
    if rails[0] is None and first is None:
        named[0] = named[1]
    if rails[1] is None and second is None:
        named[1] = named[0]
    lines = {}
    for rail in sorted(named[0] & named[1]):
        one, other = (told.get(rail, _SILENT) for told in legs)
        lines[rail] = _whole(one, other) if first and second else _half(one if first else other, bool(first or second))
    return Test(place[0], place[1], outcome.nodes, outcome.sides, lines)


def _half(leg: Leg, told: bool) -> Line:
    """A line of which one end at most has told something."""
    corrupt = told and Way.CORRUPT in (leg.sent, leg.received)
    return Line(False, corrupt, "", (0, 0))


def _whole(one: Leg, other: Leg) -> Line:
    """A line of which both ends have told something."""
    there = one.sent, other.received  # from the first node to the second
    back = other.sent, one.received
    works = [way == (Way.OK, Way.OK) for way in (there, back)]
    ok = all(works)
    corrupt = Way.CORRUPT in (*there, *back)
    odds = ""
    for (sent, received), back_works in ((there, works[1]), (back, works[0])):
        if sent is Way.OK and received is not Way.OK:
            odds = f"one says it was acknowledged, the other that it {received.value}"
        elif received is Way.OK and sent is not Way.OK and back_works:
            odds = f"one says it arrived, the other that it {sent.value}"
    if ok and (apart(one.sent_ns, other.received_ns) or apart(other.sent_ns, one.received_ns)):
        odds = "their times for one transfer differ"
    seen = max(other.sent_ns, other.received_ns, 1), max(one.sent_ns, one.received_ns, 1)
    return Line(ok, corrupt, odds, seen)


def apart(one_ns: int, other_ns: int) -> bool:
    """Whether two times of one thing cannot both be right."""
    low, high = sorted((max(one_ns, 1), max(other_ns, 1)))
    return high > limits.CHECK_AT_ODDS * low


def right(test: Test, node: int) -> bool | None:
    """Whether this node's product was right, by its own word and its partner's. None: they differ or one is missing."""
    own, seen = test.side(node), test.side(test.partner(node))
    if own is None or seen is None or seen.peer is None or own.own.right is not seen.peer.right:
        return None
    return own.own.right


def denied(test: Test, node: int) -> bool:
    """Whether this node and its partner differ about whether its product was right."""
    own, seen = test.side(node), test.side(test.partner(node))
    return own is not None and seen is not None and seen.peer is not None and own.own.right is not seen.peer.right
