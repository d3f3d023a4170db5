"""Nodes for tests of the check: each is well unless a test says otherwise, and every time is the usual one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from taskd.core.check.check import Check
from taskd.core.check.facts import Answers, Contact, Leg, Outcome, SelfTest, Side, Turn, Way, Work
from taskd.core.check.findings import Finding, LinkVerdict, NodeVerdict, RailVerdict, Report

MS = 1_000_000
RAILS = ("red", "blue")


@dataclass
class Nodes:
    """What is wrong with which nodes."""

    numbers: Collection[int]
    rails: tuple[str, ...] = RAILS
    contacts: Mapping[int, Contact] = field(default_factory=dict)
    mute: Collection[int] = ()  # say nothing of any test
    cut: Collection[tuple[int, str]] = ()  # a node and a rail: it carries nothing
    links: Collection[tuple[int, int, str]] = ()  # carry nothing
    slow_rails: Mapping[tuple[int, str], int] = field(default_factory=dict)  # by which factor
    compute: Mapping[int, int] = field(default_factory=dict)
    once: Mapping[tuple[int, int], int] = field(default_factory=dict)  # a node's compute in one turn of the whole check
    wrong: Collection[int] = ()
    denies: Collection[int] = ()
    clocks: Mapping[int, int] = field(default_factory=dict)  # by which factor a clock is wrong
    torch: Mapping[int, str] = field(default_factory=dict)
    lacks: Mapping[int, str] = field(default_factory=dict)
    torn: Collection[int] = ()
    beside: int | None = None
    turns: list[Turn] = field(default_factory=list)
    lines: list[dict[int, float]] = field(default_factory=list)

    def check(self) -> Report:
        """Check them; return the report."""
        own = {node: self.own(node) for node in self.numbers if self.contact(node) is Contact.HEARD}
        check = Check(self.numbers, own, {node: self.contact(node) for node in self.numbers}, self.beside)
        while check.turn is not None:
            turn = check.turn
            self.turns.append(turn)
            check.take(self.answer(turn))
            assert len(self.turns) < 60
        assert check.report is not None
        self.lines = [check.elapsed(number) for number in range(check.report.rounds)]
        return check.report

    def contact(self, node: int) -> Contact:
        """What the manager knows of a node."""
        return self.contacts.get(node, Contact.HEARD)

    def own(self, node: int) -> SelfTest:
        """What a node says of itself."""
        rails = tuple((rail, Way.OK) for rail in self.rails if self.lacks.get(node) != rail)
        torch = self.torch.get(node, "2.13.0")
        return SelfTest(torch, rails, self.work(node, node), Way.FAILED if node in self.torn else Way.OK)

    def work(self, node: int, by: int) -> Work:
        """A node's work, as another one tells it."""
        factor = self.compute.get(node, 1) * self.once.get((node, len(self.turns)), 1)
        wrong = node in self.wrong and not (by == node and node in self.denies)
        clock = self.clocks.get(by, 1)
        return Work(not wrong, 40 * MS * factor * clock, 15 * MS * clock)

    def answer(self, turn: Turn) -> Answers:
        """All answers of a turn."""
        outcomes = tuple(Outcome(pair, (self.side(*pair), self.side(*reversed(pair)))) for pair in turn.pairs)
        contacts = tuple((node, self.contact(node)) for node in self.numbers)
        return Answers(outcomes, contacts, tuple((node, self.own(node)) for node in turn.again))

    def side(self, node: int, peer: int) -> Side | None:
        """What one node says of a test with another one."""
        if node in self.mute or self.contact(node) is not Contact.HEARD:
            return None
        legs, works = [], False
        for rail in self.rails:
            if rail in (self.lacks.get(node), self.lacks.get(peer)):
                continue
            gone = peer in self.mute or self.contact(peer) is not Contact.HEARD
            dead = (node, rail) in self.cut or (peer, rail) in self.cut
            dead |= (min(node, peer), max(node, peer), rail) in self.links
            way = Way.LATE if gone or dead else Way.OK
            works |= way is Way.OK
            factor = max(self.slow_rails.get((end, rail), 1) for end in (node, peer))
            time_ns = 10 * MS * factor * self.clocks.get(node, 1)
            legs.append(Leg(rail, way, way, time_ns, time_ns))
        peer_work = self.work(peer, node) if works else None
        return Side(tuple(legs), self.work(node, node), peer_work, 100 * MS)


def node(report: Report, number: int) -> NodeVerdict:
    """The verdict about one node."""
    return next(one for one in report.nodes if one.node == number)


def findings(report: Report) -> dict[int, Finding]:
    """The findings that are not good, by node."""
    return {one.node: one.finding for one in report.nodes if one.finding is not Finding.HEALTHY}


def harms(report: Report) -> list[tuple[int | tuple[int, int] | None, str, str]]:
    """The rails and links that are not well: whose, which, and how."""
    rails: list[RailVerdict | LinkVerdict] = [*report.rails, *report.links]
    return [(one.nodes if isinstance(one, LinkVerdict) else one.node, one.rail, one.harm.value) for one in rails]
