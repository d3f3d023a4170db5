"""Whose fault it is: which nodes are guilty in which aspect, and which are open.

The rule for every aspect is the same. A good test clears both of its nodes: no lasting fault lets it pass. A node is
guilty if all of its tests since its last good one are bad, with enough witnesses. Times and words are weighed by
partner instead, since one that is bad in a while is bad luck. Failure modes, and what follows:

- *Both nodes of a bad test are sick*: neither is a witness against the other, since nobody has cleared them.
- *Trouble of a moment*: a node has to be bad in two rounds, unless its own host says that its probe has ended.
- *A node goes silent after it has passed*: only what came after its last good test counts.
- *A partner fails with several others now and then*: it is no witness.
- *There are no witnesses* (two nodes; all but one sick): a node is guilty only if its own word, its host's or the
  manager's agrees with a partner's. Otherwise it stays open.
- *The manager sits beside the only other witness*: the two see through the same network, so they are one witness.
- *The network is split*: a node has to fail with nodes of each part (groups.py). If more than half of the nodes would
  be down, nobody is: it is the network.
- *The manager is cut off, together with a few nodes*: if it hears less than half of the nodes, it is no witness.
- *A report of the node is lost, and its partner says that all was well*: nobody takes the node for silent.
- *More than half of the nodes seem slow, or two contradict each other about a time and neither lies*: nobody is guilty
  of being slow, since it is not known what is usual.

Invariant: who is guilty has two witnesses. Not here: products and versions (own_words.py), links (links.py), sentences
(report.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from taskd.core import limits
from taskd.core.check.facts import Contact, SelfTest, Way
from taskd.core.check.groups import Groups
from taskd.core.check.guilt import Guilt, Guilty
from taskd.core.check.links import Links
from taskd.core.check.readings import Test
from taskd.core.check.views import COMPUTE, MEMORY, REACH, Aspect, Kind, Seen, Views, subject
from taskd.core.check.witnesses import Witnesses

_TIMES = (Kind.PACE, Kind.COMPUTE, Kind.MEMORY)
_OF_LINKS = (Kind.REACH, Kind.RAIL, Kind.PACE)
_LASTING = (*_TIMES, Kind.WORD)
_FOR_SURE = ("its host", "the manager", "itself")
"""Words beside that of one partner who has seen it twice."""
_PASSES = 5
_OUTWEIGHS = 3
"""So many bad times, or words, outweigh a good one."""


class Opinions:
    """What follows from all observations so far."""

    def __init__(
        self, nodes: Collection[int], views: Views, contacts: Mapping[int, Contact], beside: int | None = None
    ) -> None:
        """`beside`: the node on whose host the manager runs. None: it has a host of its own."""
        self.nodes = nodes
        self.views = views
        self.contacts = contacts
        self.guilty = Guilty()
        self.unheard = {node for node in nodes if contacts.get(node, Contact.SILENT) is not Contact.HEARD}
        self.witnesses = Witnesses(views, self.guilty, self.unheard)
        self.links = Links()
        self.groups = Groups(nodes, views)
        self._beside = beside
        self._lapsed: dict[tuple[int, Aspect], set[int]] = {}  # with whom each node fails now and then
        order = sorted(views.by, key=lambda one: (list(Kind).index(one.kind), one.rail))
        before: dict[Aspect, set[int]] = {}
        for _ in range(_PASSES):
            for aspect in order:
                self._lapsed.clear()
                self._judge(aspect)
            self.guilty.close_pass()
            now = {aspect: set(found) for aspect, found in self.guilty.by.items()}
            if now == before:
                break
            before = now
        self.links.find(views, self.guilty, self.witnesses, self.unheard)

    # ---- guilt ------------------------------------------------------------------------------------------------

    def _judge(self, aspect: Aspect) -> None:
        found = {}
        for node in self.views.by[aspect]:
            guilt = self._guilt(node, aspect)
            if guilt is not None:
                found[node] = guilt
        if aspect.kind in _TIMES and 2 * len(found) > len(self.nodes):
            found = {}
        if aspect == REACH and 2 * sum(1 for guilt in found.values() if guilt.own != "its host") > len(self.nodes):
            found = {node: guilt for node, guilt in found.items() if guilt.own == "its host"}
        self.guilty.by[aspect] = found

    def _guilt(self, node: int, aspect: Aspect) -> Guilt | None:
        silent = self.contacts.get(node, Contact.SILENT) is Contact.SILENT
        if silent and aspect.kind in _OF_LINKS and not self._manager_hears:
            return None
        recent = self._recent(node, aspect)
        bad = [one for one in recent if not self.guilty.worthless(one.partner, one, aspect)]
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
        apart = self.witnesses.reachable(node, aspect) - self.witnesses.count(late, aspect, node)
        if own and self.witnesses.available(node, aspect) == 0:
            if node in self.views.vouchers or own == "its agent":
                return None  # somebody has reached it, or only the partner says that nobody can
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
        if not (own == "its host" and aspect == REACH and apart) and not _confirmed(cleared, aspect):
            return None
        if aspect.kind in _TIMES and self._disputed(node, aspect):
            return None
        return Guilt(tuple(cleared), own, 0 if aspect.kind in _LASTING else cleared[0].test.order)

    def _disputed(self, node: int, aspect: Aspect) -> bool:
        """Whether nodes that are no liars contradict this one about its times. Then nobody knows what is usual."""
        seen = self.views.of(node, Aspect(Kind.WORD, subject(aspect)))
        bad = [one for one in seen if not one.good and one.partner not in self.guilty.liars]
        return node not in self.guilty.liars and bool(bad) and 2 * len(bad) >= len(seen)

    def _own(self, node: int, aspect: Aspect, bad: Collection[Seen]) -> str:
        """Who besides its partners says that the node is at fault."""
        if aspect == REACH:
            contact = self.contacts.get(node, Contact.SILENT)
            if contact is Contact.ENDED:
                return "its host"
            if any(one.test.side(node) is not None for one in bad):
                return ""
            if contact is Contact.HEARD:
                return "its agent"
            return "the manager" if self._manager_hears else ""
        if aspect.kind is Kind.RAIL:
            own = self.views.own.get(node, ())
            return "itself" if own and dict(own[-1].rails).get(aspect.rail, Way.OK) is not Way.OK else ""
        if aspect in (COMPUTE, MEMORY):
            return "itself" if self.views.claims_slow(node, aspect, [one.test for one in bad]) else ""
        return ""

    def _credible(self, partner: int, aspect: Aspect, node: int) -> bool:
        """Whether the partner is a witness against this node: others have cleared it, and it does not fail with several
        others now and then."""
        if not self.witnesses.clear(partner, aspect, node):
            return False
        key = (partner, aspect)
        if key not in self._lapsed:
            self._lapsed[key] = {one.partner for one in self._lapses(partner, aspect)}
        others = self._lapsed[key] - {node}
        if aspect.kind in _LASTING:
            return len(others) <= len(self.witnesses.good(partner, aspect) - {node})
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

    @property
    def _manager_hears(self) -> bool:
        """Whether the manager hears half of the nodes. Otherwise it may be cut off itself, with a few of them."""
        silent = sum(1 for node in self.nodes if self.contacts.get(node, Contact.SILENT) is Contact.SILENT)
        return 2 * silent <= len(self.nodes)

    @property
    def able(self) -> set[int]:
        """The nodes that can be tested: they are heard, and nothing is known against them."""
        return set(self.nodes) - self.unheard - self.guilty.sick

    def _recent(self, node: int, aspect: Aspect) -> list[Seen]:
        """The bad observations since the last good one, or of the partners that outweigh the others."""
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
            if one.partner not in self.guilty.liars:
                score[one.partner] = score.get(one.partner, 0) + (-1 if one.good else 1)
        return score

    # ---- what is open -----------------------------------------------------------------------------------------

    def unexplained(self, node: int, aspect: Aspect) -> list[Seen]:
        """The bad observations since the last good one that neither the partner nor the link explains."""
        return [one for one in self._recent(node, aspect) if not self._explained(one, node, aspect)]

    def _explained(self, one: Seen, node: int, aspect: Aspect) -> bool:
        if self.guilty.worthless(one.partner, one, aspect):
            return True
        if aspect.kind is Kind.PACE and (self.guilty.late(one.partner) or self.guilty.late(node)):
            return True
        if aspect == REACH and one.test.lines and one.test.whole:
            return all(self._line_explained(one, node, Aspect(Kind.RAIL, rail)) for rail in one.test.lines)
        if aspect.kind in (Kind.RAIL, Kind.PACE):
            return self._line_explained(one, node, aspect)
        return False

    def _line_explained(self, one: Seen, node: int, aspect: Aspect) -> bool:
        sick = any(self.guilty.find(end, aspect) for end in (node, one.partner))
        return sick or self.links.settled(one.test.nodes, aspect)

    def open(self, node: int, aspect: Aspect) -> bool:
        """Whether it is not known yet if the node is at fault."""
        if node in self.guilty.liars and aspect.kind in _TIMES and self.guilty.find(node, aspect) is None:
            return bool(self._recent(node, aspect))
        if self.guilty.condemned(node, aspect) or (aspect.kind is Kind.PACE and self.guilty.late(node)):
            return False
        if aspect == REACH and self.contacts.get(node, Contact.SILENT) is not Contact.HEARD:
            return True
        if not self.views.of(node, aspect) and aspect != REACH:
            return False
        if aspect.kind is Kind.RAIL and self.witnesses.nowhere(aspect) and len(self.nodes) > limits.CHECK_NOWHERE:
            return False
        return self.witnesses.few(node, aspect) or bool(self.unexplained(node, aspect))

    def mostly_good(self, node: int, aspect: Aspect) -> bool:
        """Whether a node that is open has one bad test only, which it has answered, after enough good ones: the check
        has ended before the test could be repeated."""
        bad = self.unexplained(node, aspect)
        heard = self.contacts.get(node, Contact.SILENT) is Contact.HEARD
        return (
            heard
            and not self.witnesses.few(node, aspect)
            and len(bad) == 1
            and (bad[0].test.side(node) is not None or bad[0].test.side(bad[0].partner) is None)
        )

    def waited_for(self, node: int, round_number: int) -> tuple[int, int]:
        """How often good partners have waited for this node in a round, in vain: in all, and without its answer."""
        bad = [one for one in self.unexplained(node, REACH) if one.test.round == round_number]
        bad = [one for one in bad if self.witnesses.clear(one.partner, REACH, node)]
        return len(bad), sum(1 for one in bad if one.test.side(node) is None)


def weigh(
    nodes: Collection[int],
    tests: Sequence[Test],
    own: Mapping[int, Sequence[SelfTest]],
    contacts: Mapping[int, Contact],
    beside: int | None,
) -> Opinions:
    """Return what follows from all tests. What is usual is told without the times of liars, once these are known."""
    first = Opinions(nodes, Views(tests, own), contacts, beside)
    if not first.guilty.liars:
        return first
    return Opinions(nodes, Views(tests, own, first.guilty.liars), contacts, beside)


def _confirmed(seen: Collection[Seen], aspect: Aspect) -> bool:
    """Whether enough of what was seen was seen twice. Where there are few partners, each has to repeat a time."""
    partners = [one.partner for one in seen]
    few = aspect.kind in _LASTING and len(set(partners)) < limits.CHECK_PARTNERS
    return len({one.test.round for one in seen}) >= 2 and (not few or len(partners) >= 2 * len(set(partners)))
