"""What follows from the nodes' own words: wrong products, versions of torch, rails that are missing.

Here a node accuses itself, so no partner has to be cleared first. Failure modes, and what follows:

- *A product was wrong once, and never again*: one witness is not enough. The node is undecided, and stays.
- *A wrong product is not admitted*: the node and its partner contradict each other, which opinions.py weighs.
- *As many nodes have one version of torch as another*: nobody knows which one is meant. All of them are undecided.
- *A node has said nothing of itself*: it is asked again. Until it answers, it is undecided.
- *A rail is missing*: it may have come up late, so the node is asked again.
- *The ranks of a node cannot exchange data with each other*: only the node itself can see that, so it has to say so
  twice.

Invariant: a right product never excuses a wrong one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from taskd.core import limits
from taskd.core.check.facts import SelfTest, Way
from taskd.core.check.readings import Test, right


class OwnWords:
    """What the nodes of one check say of themselves."""

    def __init__(self, nodes: Collection[int], tests: Sequence[Test], own: Mapping[int, Sequence[SelfTest]]) -> None:
        self._own = own
        self._wrong: dict[int, list[str]] = {node: [] for node in nodes}
        for node, said in own.items():
            self._wrong[node] += ["itself" for one in said if not one.work.right]
        for test in tests:
            for node in test.nodes:
                if right(test, node) is False:
                    self._wrong[node].append(f"node {test.partner(node)}")
        versions = Counter(said[-1].torch for said in own.values() if said)
        self._versions = versions.most_common(2)
        rails = Counter(rail for said in own.values() if said for rail in set(said[-1].names))
        self._told = sum(1 for said in own.values() if said)
        self._is_enough = 2 * self._told >= len(nodes)
        """Whether so many have told something that it stands for all nodes."""
        self.usual_rails = sorted(rail for rail, count in rails.items() if self._is_enough and 2 * count > self._told)
        """The rails that most nodes have."""

    def wrong(self, node: int) -> list[str]:
        """Who says that a product of this node was wrong, each once, in their order."""
        return list(dict.fromkeys(self._wrong[node]))

    def computes_wrongly(self, node: int) -> bool:
        """Whether it is proved that the node computes wrongly: there are two such words."""
        said = self._wrong[node]
        return len(set(said)) >= 2 or said.count("itself") >= 2

    def torn(self, node: int) -> int:
        """How often the node has said that its own ranks cannot exchange data."""
        return sum(1 for one in self._own.get(node, ()) if one.local is not Way.OK)

    def version(self, node: int) -> str:
        """The node's version of torch, if most nodes have another one or none has a majority. Empty: it is usual."""
        said = self._own.get(node)
        if not said or len(self._versions) < 2 or (self.most and said[-1].torch == self.most):
            return ""
        return said[-1].torch

    @property
    def most(self) -> str:
        """The version of torch that more than half of the nodes have. Empty: there is none."""
        version, most = self._versions[0] if self._versions else ("", 0)
        return version if self._is_enough and 2 * most > self._told else ""

    def missing(self, node: int) -> list[str]:
        """The rails that most nodes have, and that this one has not, by its own word, twice."""
        said = self._own.get(node, ())
        return self._lacks(node) if len(said) >= limits.CHECK_GOOD else []

    def _lacks(self, node: int) -> list[str]:
        """The rails that most nodes have and this one has never named."""
        named = {rail for one in self._own.get(node, ()) for rail in one.names}
        return [rail for rail in self.usual_rails if rail not in named]

    def told(self, node: int) -> bool:
        """Whether the node has said anything of itself."""
        return bool(self._own.get(node))

    def open(self, node: int) -> bool:
        """Whether the node should test itself once more."""
        said = self._own.get(node)
        if not said:
            return True
        if len(said) > limits.CHECK_GOOD:
            return False
        broken = any(way is not Way.OK for _, way in said[-1].rails)
        doubted = bool(self._wrong[node]) and not self.computes_wrongly(node)
        lacking = len(said) < limits.CHECK_GOOD and bool(self._lacks(node))
        return broken or doubted or lacking or self.torn(node) == 1
