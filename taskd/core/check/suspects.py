"""Who is cleared, who is open, and who is guilty of what, from all that is known: the state of a check in one look.

opinions.py knows what tests show, own_words.py what nodes say of themselves. Here they meet, because the machine needs
one answer for each node: whom to test, whom to test it with. It does NOT write sentences (report.py).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from taskd.core.check.opinions import Opinions
from taskd.core.check.own_words import OwnWords
from taskd.core.check.pairs import Pair, pair
from taskd.core.check.views import REACH, Aspect


class Suspects:
    """Where each node stands."""

    def __init__(self, nodes: Collection[int], opinions: Opinions, words: OwnWords) -> None:
        self.nodes = nodes
        self.opinions = opinions
        self.words = words
        self._aspects = list(opinions.views.by)
        self._open = {node: self._open_in(node) for node in nodes}
        self.open = sorted(
            (node for node in nodes if self._open[node]),
            key=lambda one: (len(opinions.witnesses.good(one, REACH)), one),
        )
        """The nodes that have to be tested again, those with the fewest good tests first."""
        self.clean = [node for node in nodes if not self._open[node] and not self.accused(node) and self._passed(node)]
        """The nodes of which only good is known: they are partners for the others."""
        passed = {node for node in nodes if self._passed(node) and node not in opinions.guilty.sick}
        self._hopeful = passed if self.clean else {node for node in nodes if not opinions.guilty.find(node, REACH)}
        asked = set(nodes) - opinions.unheard
        self.doubted = [node for node in sorted(asked) if words.open(node) and not opinions.guilty.find(node, REACH)]
        """The nodes that should test themselves again."""

    def partners(self, node: int, taken: Collection[Pair], met: Mapping[Pair, int]) -> list[int]:
        """Whom to test a node with, the best partner first: one that can still clear it, that is clean itself, and that
        it has not met. `taken`: the pairs that are out of question; `met`: how often others have met."""
        met_badly, met_well = list[set[int]](), list[set[int]]()
        for aspect in self._open[node]:
            met_badly.append({one.partner for one in self.opinions.unexplained(node, aspect)})
            if self.opinions.witnesses.few(node, aspect):
                met_well.append(self.opinions.witnesses.good(node, aspect))
        tried = {partner for bad in met_badly for partner in bad}
        untried = self.opinions.groups.untried(tried, self.opinions.able) if tried else set[int]()
        spent = [*met_badly, *met_well]
        clean = set(self.clean)
        others = [one for one in self.nodes if one in clean or (one in self._hopeful and one != node)]
        free = [one for one in others if pair(node, one) not in taken]
        return sorted(
            free,
            key=lambda one: (
                bool(untried) and one not in untried,
                sum(one in some for some in spent),
                one not in clean,
                met.get(pair(node, one), 0),
            ),
        )

    def open_in(self, node: int) -> list[Aspect]:
        """The aspects in which it is not known yet whether the node is at fault."""
        return self._open[node]

    def guilty_in(self, node: int) -> list[Aspect]:
        """The aspects in which the node is guilty."""
        return [aspect for aspect in self._aspects if self.opinions.guilty.find(node, aspect)]

    def accused(self, node: int) -> bool:
        """Whether anything is known against the node."""
        return bool(self.guilty_in(node)) or bool(self.words.wrong(node)) or self.words.torn(node) > 0

    def _passed(self, node: int) -> bool:
        return bool(self.opinions.witnesses.good(node, REACH))

    def _open_in(self, node: int) -> list[Aspect]:
        if len(self.nodes) < 2 or self.opinions.guilty.find(node, REACH):
            return []
        found = [aspect for aspect in self._aspects if self.opinions.open(node, aspect)]
        if self.words.computes_wrongly(node):
            return [aspect for aspect in found if aspect == REACH]
        if self.words.wrong(node) and REACH not in found:
            found.append(REACH)  # its product has to be seen by other partners, too
        return found
