"""Whose fault it is: which nodes are guilty in which aspect, which are open, and which links are in doubt.

The rule for every aspect is the same. A good test clears both of its nodes in that aspect: no lasting fault lets it pass.
A node is guilty if all of its tests since its last good one are bad, with enough partners that others have cleared. A
bad test of two nodes that others have cleared accuses the link between them. Failure modes, and what follows:

- *Both nodes of a bad test are sick*: neither counts as a witness against the other, since nobody has cleared them.
- *Trouble of a moment*: a node that can be heard has to be bad in two rounds. One good test undoes what was before it.
- *A node goes silent after it has passed*: only what came after its last good test counts.
- *There are no partners that others have cleared* (two nodes; all but one sick): a node is guilty only if its own word, or
  its host's, agrees with a partner's. Otherwise it stays open.
- *The manager sits beside the only other witness*: the two see through the same network, so they are one witness.
- *More than half of the nodes seem slow*: none is guilty of it. Who is usual, is a question of the majority.

Invariants: a node with a good test in an aspect after the bad ones is not guilty in it. Who is guilty has two witnesses.
Not here: products and versions (own_words.py), and the sentences (report.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from taskd.core import limits
from taskd.core.check.facts import Contact, SelfTest, Way
from taskd.core.check.groups import Groups
from taskd.core.check.pairs import Pair
from taskd.core.check.readings import Test
from taskd.core.check.views import COMPUTE, MEMORY, REACH, Aspect, Kind, Seen, Views, subject

_TIMES = (Kind.PACE, Kind.COMPUTE, Kind.MEMORY)
_OF_LINKS = (Kind.REACH, Kind.RAIL, Kind.PACE)
_LASTING = (*_TIMES, Kind.WORD)
_FOR_SURE = ("its host", "the manager", "itself")
"""Words beside that of one partner who has seen it twice."""
_PASSES = 5
_OUTWEIGHS = 3
"""So many bad times, or words, outweigh a good one."""


@dataclass(frozen=True, slots=True)
class Guilt:
    """A node that is guilty in an aspect."""

    seen: tuple[Seen, ...]
    own: str  # who besides the partners says so: `itself`, `its host`, `the manager`; empty: nobody
    since: int  # the turn of the whole check from which on it is guilty

    @property
    def partners(self) -> list[int]:
        """The witnesses."""
        return sorted({one.partner for one in self.seen})


class Opinions:
    """What follows from all observations so far."""

    def __init__(
        self, nodes: Collection[int], views: Views, contacts: Mapping[int, Contact], beside: int | None = None
    ) -> None:
        """`beside`: the node on whose host the manager runs. None: it has a host of its own."""
        self.nodes = nodes
        self.views = views
        self.contacts = contacts
        self.guilty: dict[Aspect, dict[int, Guilt]] = {}
        self.liars: set[int] = set()
        self.sick: set[int] = set()
        """The nodes that are guilty in anything, or seemed so before liars were known."""
        self.links: dict[tuple[Pair, Aspect], list[Seen]] = {}
        self._beside = beside
        self._lapsed: dict[tuple[int, Aspect], set[int]] = {}  # with whom each node fails now and then
        self._unheard = {node for node in nodes if contacts.get(node, Contact.SILENT) is not Contact.HEARD}
        self._good = {
            aspect: {node: {one.partner for one in seen if one.good} for node, seen in by.items()}
            for aspect, by in views.by.items()
        }
        self._sole: dict[Aspect, dict[int, int]] = {}
        for aspect, by in self._good.items():
            counts = self._sole.setdefault(aspect, {})
            for good in by.values():
                if len(good) == 1:
                    only = next(iter(good))
                    counts[only] = counts.get(only, 0) + 1
        self._some = {aspect: {node for node, good in by.items() if good} for aspect, by in self._good.items()}
        self.groups = Groups(nodes, views)
        order = sorted(views.by, key=lambda one: (list(Kind).index(one.kind), one.rail))
        before = None
        for _ in range(_PASSES):  # who is found guilty in one pass is no witness in the next one
            for aspect in order:
                self._lapsed.clear()
                self._judge(aspect)
            words = [found for aspect, found in self.guilty.items() if aspect.kind is Kind.WORD]
            self.sick |= {node for found in self.guilty.values() for node in found}
            self.liars = {node for found in words for node in found}
            found = {aspect: set(guilty) for aspect, guilty in self.guilty.items()}
            if found == before:
                break
            before = found
        self._find_links()

    # ---- guilt ------------------------------------------------------------------------------------------------

    def is_guilty(self, node: int, aspect: Aspect) -> bool:
        """Whether the node is guilty in this aspect."""
        return node in self.guilty.get(aspect, {})

    def late(self, node: int) -> bool:
        """Whether the node is slow at all it does. Then its rails look slow, too."""
        return self.is_guilty(node, COMPUTE) or self.is_guilty(node, MEMORY)

    def _judge(self, aspect: Aspect) -> None:
        found = {}
        for node in self.views.by[aspect]:
            guilt = self._guilt(node, aspect)
            if guilt is not None:
                found[node] = guilt
        if aspect.kind in _TIMES and 2 * len(found) > len(self.nodes):
            found = {}
        self.guilty[aspect] = found

    def _guilt(self, node: int, aspect: Aspect) -> Guilt | None:
        recent = self._recent(node, aspect)
        bad = [one for one in recent if not self._worthless(one, aspect)]
        if not bad:
            return None
        told = [one for one in bad if one.test.side(one.partner) is not None]
        late = set[int]()
        if aspect.kind is Kind.PACE:
            late = {one.partner for one in told}
            told = [one for one in told if not self.views.slow_in(one.test, one.partner)]
            late -= {one.partner for one in told}
        cleared = [one for one in told if self._credible(one.partner, aspect, node)]
        own = self._own(node, aspect, cleared or told)
        apart = self.reachable(node, aspect) - self._count(late, node, aspect)
        if own and self.available(node, aspect) == 0:
            cleared = told
        elif not own and apart < limits.CHECK_GOOD:
            return None
        partners = {one.partner for one in cleared}
        if aspect.kind in _LASTING and apart > limits.CHECK_GOOD:
            torn = [partner for partner, points in self._score(node, aspect).items() if points == 0]
            apart = max(apart - len(torn), limits.CHECK_GOOD)
        most = limits.CHECK_PARTNERS
        if len(self.nodes) <= limits.CHECK_ALL_PAIRS:
            most = max(most, -(-2 * apart // 3))
        wanted = min(limits.CHECK_GOOD if own else most, max(apart, 1))
        if own in _FOR_SURE and len(cleared) >= limits.CHECK_GOOD:
            wanted = 1
        if len(partners) < wanted or (own == "the manager" and partners == {self._beside}):
            return None
        if aspect.kind in _OF_LINKS and not own and self.groups.untried(partners, self.able - {node}):
            return None
        if not (own and aspect == REACH and apart) and not _confirmed(cleared, aspect):
            return None
        if aspect.kind in _TIMES and self._disputed(node, aspect):
            return None
        return Guilt(tuple(cleared), own, 0 if aspect.kind in _LASTING else cleared[0].test.order)

    def _disputed(self, node: int, aspect: Aspect) -> bool:
        """Whether nodes that are no liars contradict this one about its times. Then nobody knows what is usual."""
        seen = self.views.of(node, Aspect(Kind.WORD, subject(aspect)))
        bad = [one for one in seen if not one.good and one.partner not in self.liars]
        return node not in self.liars and bool(bad) and 2 * len(bad) >= len(seen)

    def _own(self, node: int, aspect: Aspect, bad: Collection[Seen]) -> str:
        """Who besides its partners says that the node is at fault."""
        if aspect == REACH:
            contact = self.contacts.get(node, Contact.SILENT)
            if contact is Contact.ENDED:
                return "its host"
            unheard = all(one.test.side(node) is None for one in bad)
            if contact is Contact.SILENT and unheard:
                return "the manager"
            return "its agent" if unheard else ""
        if aspect.kind is Kind.RAIL:
            own = self.views.own.get(node, ())
            return "itself" if own and dict(own[-1].rails).get(aspect.rail, Way.OK) is not Way.OK else ""
        if aspect in (COMPUTE, MEMORY):
            return "itself" if self.views.claims_slow(node, aspect, [one.test for one in bad]) else ""
        return ""

    # ---- witnesses --------------------------------------------------------------------------------------------

    def good(self, node: int, aspect: Aspect) -> set[int]:
        """The partners with which the node was good."""
        return self._good.get(aspect, {}).get(node, set())

    def nowhere(self, aspect: Aspect) -> bool:
        """Whether no two nodes are good in this aspect, among enough nodes that reach each other otherwise."""
        if self._some.get(aspect):
            return False
        seen = [one for by in self.views.by.get(aspect, {}).values() for one in by]
        return len({one.test.nodes for one in seen if one.test.passed}) >= limits.CHECK_NOWHERE

    def available(self, node: int, aspect: Aspect) -> int:
        """How many other nodes can be witnesses: somebody else has cleared them."""
        some = self._some.get(aspect, set())
        condemned = self._count(self._all_guilty(aspect), node, aspect)
        return len(some) - self._sole.get(aspect, {}).get(node, 0) - (node in some) - condemned

    def reachable(self, node: int, aspect: Aspect) -> int:
        """How many of these have seen something of the node in this aspect, or still can."""
        seen = {one.partner for one in self.views.of(node, aspect) if one.test.side(one.partner) is not None}
        seen |= self.views.vouchers.get(node, set())
        return self.available(node, aspect) - self._count(self._spent(node) - seen - self._all_guilty(aspect), node, aspect)

    def _spent(self, node: int) -> set[int]:
        """The nodes with which this one is tested no more: they were asked twice, are not heard, or are sick."""
        twice = {partner for partner, count in self.views.met.get(node, {}).items() if count >= 2}
        return twice | self._unheard | self.sick

    def _count(self, some: Collection[int], node: int, aspect: Aspect) -> int:
        """How many of these nodes somebody other than this node has cleared."""
        return sum(1 for one in some if one != node and self._cleared(one, aspect, node))

    def _credible(self, partner: int, aspect: Aspect, node: int) -> bool:
        """Whether the partner is a witness against this node: others have cleared it, and it does not fail with several
        others now and then."""
        if not self._cleared(partner, aspect, node):
            return False
        key = (partner, aspect)
        if key not in self._lapsed:
            self._lapsed[key] = {one.partner for one in self._lapses(partner, aspect)}
        others = self._lapsed[key] - {node}
        if aspect.kind in _LASTING:
            return len(others) <= len(self.good(partner, aspect) - {node})
        return len(others) < min(2, max(len(self.nodes) - 2, 1))

    def _lapses(self, node: int, aspect: Aspect) -> list[Seen]:
        """The bad observations that neither a sick partner nor a link accounts for."""
        found = []
        for one in self.views.of(node, aspect):
            if not one.good and one.test.side(one.partner) is not None and one.test.side(node) is not None:
                partner = self.views.of(one.partner, aspect)
                since = -1 if aspect.kind in _LASTING else one.test.order
                later = any(two.good and two.test.order > since for two in partner)
                if later and not self._explained(one, node, aspect):
                    found.append(one)
        return found

    def _cleared(self, partner: int, aspect: Aspect, node: int) -> bool:
        """Whether somebody other than this node has cleared the partner."""
        return bool(self.good(partner, aspect) - {node})

    def _condemned(self, node: int, aspect: Aspect) -> bool:
        return node in self.liars or self.is_guilty(node, REACH) or self.is_guilty(node, aspect)

    def _worthless(self, one: Seen, aspect: Aspect) -> bool:
        """Whether the partner was at fault itself when this was seen. What it saw before that counts."""
        found = [self.guilty.get(about, {}).get(one.partner) for about in (REACH, aspect)]
        return one.partner in self.liars or any(guilt and one.test.order >= guilt.since for guilt in found)

    @property
    def able(self) -> set[int]:
        """The nodes that can be tested: they are heard, and nothing is known against them."""
        return set(self.nodes) - self._unheard - self.sick

    def _all_guilty(self, aspect: Aspect) -> set[int]:
        return {*self.liars, *self.guilty.get(REACH, {}), *self.guilty.get(aspect, {})}

    def _recent(self, node: int, aspect: Aspect) -> list[Seen]:
        """The bad observations since the last good one. Times and words are weighed by partner instead: one that is bad
        in a while is bad luck, for a healthy node and for a sick one."""
        seen = self.views.of(node, aspect)
        if aspect.kind not in _LASTING:
            last = max((at for at, one in enumerate(seen) if one.good), default=-1)
            return [one for one in seen[last + 1 :] if one.test.order > self.views.vouched.get(node, -1)]
        score = self._score(node, aspect)
        against = {partner for partner, points in score.items() if points > 0}
        if len(against) < _OUTWEIGHS * sum(1 for points in score.values() if points < 0):
            return []
        return [one for one in seen if not one.good and one.partner in against]

    def _score(self, node: int, aspect: Aspect) -> dict[int, int]:
        """What speaks against the node, by partner that is no liar: above 0, it was bad more often than good."""
        score: dict[int, int] = {}
        for one in self.views.of(node, aspect):
            if one.partner not in self.liars:
                score[one.partner] = score.get(one.partner, 0) + (-1 if one.good else 1)
        return score

    # ---- what is open -----------------------------------------------------------------------------------------

    def unexplained(self, node: int, aspect: Aspect) -> list[Seen]:
        """The bad observations since the last good one that neither the partner nor the link explains."""
        return [one for one in self._recent(node, aspect) if not self._explained(one, node, aspect)]

    def _explained(self, one: Seen, node: int, aspect: Aspect) -> bool:
        if self._worthless(one, aspect):
            return True
        if aspect.kind is Kind.PACE and (self.late(one.partner) or self.late(node)):
            return True
        if aspect == REACH and one.test.lines and one.test.whole:
            return all(self._line_explained(one, node, Aspect(Kind.RAIL, rail)) for rail in one.test.lines)
        if aspect.kind in (Kind.RAIL, Kind.PACE):
            return self._line_explained(one, node, aspect)
        return False

    def _line_explained(self, one: Seen, node: int, aspect: Aspect) -> bool:
        sick = self.is_guilty(node, aspect) or self.is_guilty(one.partner, aspect)
        return sick or self.settled(one.test.nodes, aspect)

    def open(self, node: int, aspect: Aspect) -> bool:
        """Whether it is not known yet if the node is at fault."""
        if node in self.liars and aspect.kind in _TIMES and not self.is_guilty(node, aspect):
            return bool(self._recent(node, aspect))
        if self._condemned(node, aspect) or (aspect.kind is Kind.PACE and self.late(node)):
            return False
        if aspect == REACH and self.contacts.get(node, Contact.SILENT) is not Contact.HEARD:
            return True
        if not self.views.of(node, aspect) and aspect != REACH:
            return False
        if aspect.kind is Kind.RAIL and self.nowhere(aspect) and len(self.nodes) > limits.CHECK_NOWHERE:
            return False
        return self.few(node, aspect) or bool(self.unexplained(node, aspect))

    def mostly_good(self, node: int, aspect: Aspect) -> bool:
        """Whether a node that is open has one bad test only, which it has answered, after enough good ones: the check
        has ended before the test could be repeated."""
        bad = self.unexplained(node, aspect)
        heard = self.contacts.get(node, Contact.SILENT) is Contact.HEARD
        return heard and not self.few(node, aspect) and len(bad) == 1 and (
            bad[0].test.side(node) is not None or bad[0].test.side(bad[0].partner) is None
        )

    def few(self, node: int, aspect: Aspect) -> bool:
        """Whether the node has passed with too few partners to be healthy."""
        good = self.good(node, aspect)
        if len(good) >= limits.CHECK_GOOD:
            return False
        spent = self._spent(node) - good - self._all_guilty(aspect)
        left = self.available(node, aspect) - self._count(spent, node, aspect)
        return len(good) < max(1, min(limits.CHECK_GOOD, left))

    def waited_for(self, node: int, round_number: int) -> tuple[int, int]:
        """How often good partners have waited for this node in a round, in vain: in all, and without its answer."""
        bad = [one for one in self.unexplained(node, REACH) if one.test.round == round_number]
        bad = [one for one in bad if self._cleared(one.partner, REACH, node)]
        return len(bad), sum(1 for one in bad if one.test.side(node) is None)

    # ---- links ------------------------------------------------------------------------------------------------

    def _find_links(self) -> None:
        """Collect the tests of two nodes that are well otherwise, for links that were bad once."""
        for aspect, by in self.views.by.items():
            if aspect.kind in (Kind.RAIL, Kind.PACE):
                for node, seen in by.items():
                    bad = [one for one in seen if not one.good and node == one.test.nodes[0]]
                    for nodes in {one.test.nodes for one in bad if self._well(one, aspect)}:
                        self.links[(nodes, aspect)] = [one for one in seen if one.test.nodes == nodes]

    def _well(self, one: Seen, aspect: Aspect) -> bool:
        """Whether both nodes of a test are well in this aspect, so that the link is in doubt if the test was bad."""
        both = one.test.nodes
        if self._unheard & set(both) or any(self._worthless(Seen(one.test, end, False), aspect) for end in both):
            return False
        if aspect.kind is Kind.PACE and any(self.late(end) for end in both):
            return False
        return all(self.good(end, aspect) - set(both) for end in both)

    def settled(self, nodes: Pair, aspect: Aspect) -> bool:
        """Whether the link between these nodes is at fault: its last two tests were bad, and both nodes say so. Of times
        it takes three."""
        last = self.links.get((nodes, aspect), [])[-(3 if aspect.kind is Kind.PACE else 2) :]
        return len(last) > (aspect.kind is Kind.PACE) + 1 and not any(one.good or not one.test.whole for one in last)

    def doubtful(self) -> list[Pair]:
        """The links whose last test was bad, and that have to be tried again."""
        bad = (key for key, seen in self.links.items() if not seen[-1].good and not self.settled(*key))
        return sorted({nodes for nodes, _ in bad})


def weigh(
    nodes: Collection[int],
    tests: Sequence[Test],
    own: Mapping[int, Sequence[SelfTest]],
    contacts: Mapping[int, Contact],
    beside: int | None,
) -> Opinions:
    """Return what follows from all tests. What is usual is told without the times of liars, once these are known."""
    first = Opinions(nodes, Views(tests, own), contacts, beside)
    if not first.liars:
        return first
    return Opinions(nodes, Views(tests, own, first.liars), contacts, beside)


def _confirmed(seen: Collection[Seen], aspect: Aspect) -> bool:
    """Whether enough of what was seen was seen twice. Where there are few partners, each has to repeat a time."""
    partners = [one.partner for one in seen]
    few = aspect.kind in _LASTING and len(set(partners)) < limits.CHECK_PARTNERS
    return len({one.test.round for one in seen}) >= 2 and (not few or len(partners) >= 2 * len(set(partners)))
