"""The check of nodes as a machine: it asks for one turn of tests after another, and ends with a verdict for each node.

A turn is a set of tests at the same time. A round is some turns: in the first round everyone meets everyone (small
jobs) or two others (large jobs). In the later rounds each suspect meets nodes that are cleared, until its verdict has
two witnesses, and links that were bad once are tried again. Where all is well there is one round. Failure modes, and
what follows:

- *A node answers nothing*: its answers count as missing once the turn's limit is over, and the other tests go on. Once
  it is found to be down, nobody waits for it any more.
- *A node reports faults with everyone*: after CHECK_PARTNERS of them, nobody waits for it in this round.
- *No node is cleared*: those who have not met yet meet.
- *Answers to a test that was not asked for, or of a node that is not in it*: dropped. Of two answers the first counts.

Invariants: there are at most CHECK_ROUNDS rounds. A node is in one test of a turn at most. Every wait has the turn's
limit. What was answered decides everything: the same answers give the same turns and the same report. One instance is
one check; it does NOT measure, wait or end a node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from taskd.core import limits
from taskd.core.check.facts import Answers, Contact, Outcome, SelfTest, Side, Turn
from taskd.core.check.findings import Report
from taskd.core.check.opinions import Opinions, weigh
from taskd.core.check.own_words import OwnWords
from taskd.core.check.pairs import Pair, facing, matching, pair, turns
from taskd.core.check.readings import Test, read
from taskd.core.check.report import report
from taskd.core.check.suspects import Suspects
from taskd.core.check.views import REACH


class Check:
    """One check of the nodes that came."""

    def __init__(
        self,
        nodes: Iterable[int],
        own: Mapping[int, SelfTest],
        contacts: Mapping[int, Contact],
        beside: int | None = None,
    ) -> None:
        """`own`: what the nodes say of themselves before the first turn. `beside`: the node on whose host the manager
        runs. None: no node's."""
        self.nodes = tuple(sorted(set(nodes)))
        self.turn: Turn | None = None
        """The tests that are to be done now. None: the check has ended."""
        self.report: Report | None = None
        self._own = {node: [own[node]] if node in own else [] for node in self.nodes}
        self._contacts = {node: contacts.get(node, Contact.SILENT) for node in self.nodes}
        self._beside = beside
        self._tests: list[Test] = []
        self._met: dict[Pair, int] = {}
        self._round = 0
        self._number = 0
        self._order = 0
        self._scheduled = turns(len(self.nodes))
        if len(self.nodes) > limits.CHECK_ALL_PAIRS:
            self._scheduled = limits.CHECK_TURNS + len(self.nodes) % 2
        self._next()

    def take(self, answers: Answers) -> Turn | None:
        """Take what came of the turn, and return the next one. None: the check has ended, and `report` is there."""
        assert self.turn is not None, "the check has ended"
        told: dict[Pair, Outcome] = {}
        for outcome in answers.outcomes:
            told.setdefault(pair(*outcome.nodes), outcome)
        for nodes in self.turn.pairs:
            outcome = _readable(_ordered(told.get(nodes, Outcome(nodes, (None, None)))))
            first, second = (self._own[node][-1].names if self._own[node] else None for node in nodes)
            self._tests.append(read(outcome, (first, second), (self._round, self._order)))
            self._met[nodes] = self._met.get(nodes, 0) + 1
        heard: dict[int, Contact] = {}
        for node, contact in answers.contacts:
            heard.setdefault(node, contact)
        self._contacts = {node: heard.get(node, Contact.SILENT) for node in self.nodes}
        again: dict[int, SelfTest] = {}
        for node, one in answers.again:
            again.setdefault(node, one)
        for node in self.turn.again:
            if node in again:
                self._own[node].append(again[node])
        self._number += 1
        self._order += 1
        self._next()
        return self.turn

    def elapsed(self, round_number: int) -> dict[int, float]:
        """How many seconds the tests of each node took in this round. 3600: it has passed none of them."""
        took: dict[int, float] = {}
        passed = set()
        for test in self._tests:
            if test.round == round_number:
                for node in test.nodes:
                    side = test.side(node)
                    took[node] = took.get(node, 0.0) + (max(side.elapsed_ns, 0) / limits.SECOND if side else 0.0)
                    if test.passed:
                        passed.add(node)
        return {
            node: time_s if node in passed else limits.CHECK_SILENT_SECONDS for node, time_s in sorted(took.items())
        }

    # ---- the next turn ----------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Decide what is done next."""
        opinions = weigh(self.nodes, self._tests, self._own, self._contacts, self._beside)
        words = OwnWords(self.nodes, self._tests, self._own)
        suspects = Suspects(self.nodes, opinions, words)
        while True:
            pairs, again = self._pairs(suspects, opinions), self._again(suspects)
            if pairs or (again and self._number == 0 and self._round):
                limit_ns = limits.CHECK_PAIR_NS + (limits.CHECK_SELF_NS if again else 0)
                self.turn = Turn(self._round, self._number, tuple(sorted(pairs)), tuple(again), limit_ns)
                return
            if self._round == 0 and self._number < self._scheduled:
                self._number += 1
            elif self._round + 1 < limits.CHECK_ROUNDS and (
                suspects.open or suspects.doubted or opinions.links.doubtful()
            ):
                self._round, self._number = self._round + 1, 0
            else:
                break
        self.turn = None
        rounds = max((test.round + 1 for test in self._tests), default=0)
        self.report = report(suspects, rounds, self._order)

    def _again(self, suspects: Suspects) -> list[int]:
        """The nodes that test themselves once more: in the first turn of each round but the first."""
        return suspects.doubted if self._round and self._number == 0 else []

    def _pairs(self, suspects: Suspects, opinions: Opinions) -> list[Pair]:
        if self._round == 0:
            if self._number >= self._scheduled:
                return []
            pairs = facing(self.nodes, self._number)
            return [nodes for nodes in pairs if not any(self._given_up(node, opinions) for node in nodes)]
        most = limits.CHECK_TURNS
        if 2 * len(suspects.open) > len(suspects.clean):
            most = limits.CHECK_MORE_TURNS
        if self._number >= most:
            return []
        here = {test.nodes for test in self._tests if test.round == self._round}
        links = [nodes for nodes in opinions.links.doubtful() if nodes not in here]
        wanted = []
        for node in suspects.open:
            if self._given_up(node, opinions):
                continue
            wanted.append((node, suspects.partners(node, here, self._met)))
        pairs = matching(wanted)
        busy = {node for both in pairs for node in both}
        pairs += matching([(low, [high]) for low, high in links], busy)
        if pairs:
            busy = {node for both in pairs for node in both}
            pairs += opinions.groups.bridges([node for node in suspects.clean if node not in busy])
        return pairs

    def _given_up(self, node: int, opinions: Opinions) -> bool:
        """Whether nobody waits for this node in this round any more."""
        if opinions.guilty.find(node, REACH):
            return True
        bad, silent = opinions.waited_for(node, self._round)
        return bad >= limits.CHECK_PARTNERS or silent >= limits.CHECK_GOOD


def _ordered(outcome: Outcome) -> Outcome:
    low, high = outcome.nodes
    return outcome if low < high else Outcome((high, low), (outcome.sides[1], outcome.sides[0]))


def _readable(outcome: Outcome) -> Outcome:
    """The same without answers whose times are none."""
    sides = (side if side is not None and _is_possible(side) else None for side in outcome.sides)
    return Outcome(outcome.nodes, (next(sides), next(sides)))


def _is_possible(side: Side) -> bool:
    works = (side.own, *([side.peer] if side.peer is not None else []))
    times = [side.elapsed_ns, *(time_ns for work in works for time_ns in (work.compute_ns, work.memory_ns))]
    times += [time_ns for leg in side.legs for time_ns in (leg.sent_ns, leg.received_ns)]
    return all(type(time_ns) is int and 0 <= time_ns <= limits.CHECK_MOST_NS for time_ns in times)
