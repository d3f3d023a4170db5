"""Who can be a witness: nodes that somebody else has cleared, and that can still be asked.

A good test clears both of its nodes in an aspect. So a partner is a witness against a node if it has a good test with a
third one. How many witnesses there are says how many a verdict needs: where there are few, it needs all of them. Nodes
that are guilty, or that were asked twice without seeing anything, are not waited for.

Nothing is judged here (opinions.py).
"""

from __future__ import annotations

from collections.abc import Collection

from taskd.core import limits
from taskd.core.check.guilt import Guilty
from taskd.core.check.views import Aspect, Views


class Witnesses:
    """Who was good with whom, in each aspect."""

    def __init__(self, views: Views, guilty: Guilty, unheard: Collection[int]) -> None:
        self._views = views
        self._guilty = guilty
        self._unheard = set(unheard)
        self._good = {
            aspect: {node: {one.partner for one in seen if one.good} for node, seen in by.items()}
            for aspect, by in views.by.items()
        }
        self._some = {aspect: {node for node, good in by.items() if good} for aspect, by in self._good.items()}
        self._sole: dict[Aspect, dict[int, int]] = {}  # how many nodes this one alone has cleared
        for aspect, by in self._good.items():
            counts = self._sole.setdefault(aspect, {})
            for good in by.values():
                if len(good) == 1:
                    only = next(iter(good))
                    counts[only] = counts.get(only, 0) + 1

    def good(self, node: int, aspect: Aspect) -> set[int]:
        """The partners with which the node was good."""
        return self._good.get(aspect, {}).get(node, set())

    def clear(self, witness: int, aspect: Aspect, node: int) -> bool:
        """Whether somebody other than this node has cleared the witness."""
        return bool(self.good(witness, aspect) - {node})

    def count(self, some: Collection[int], aspect: Aspect, node: int) -> int:
        """How many of these others somebody other than this node has cleared."""
        return sum(1 for one in some if one != node and self.clear(one, aspect, node))

    def nowhere(self, aspect: Aspect) -> bool:
        """Whether no two nodes are good in this aspect, among enough that reach each other otherwise."""
        if self._some.get(aspect):
            return False
        seen = [one for by in self._views.by.get(aspect, {}).values() for one in by]
        return len({one.test.nodes for one in seen if one.test.passed}) >= limits.CHECK_NOWHERE

    def available(self, node: int, aspect: Aspect) -> int:
        """How many others can be witnesses about a node."""
        some = self._some.get(aspect, set())
        condemned = self.count(self._guilty.all_in(aspect), aspect, node)
        return len(some) - self._sole.get(aspect, {}).get(node, 0) - (node in some) - condemned

    def reachable(self, node: int, aspect: Aspect) -> int:
        """How many of these have seen something of the node in this aspect, or still can."""
        seen = {one.partner for one in self._views.of(node, aspect) if one.test.side(one.partner) is not None}
        seen |= self._views.vouchers.get(node, set())
        lost = self._spent(node) - seen - self._guilty.all_in(aspect)
        return self.available(node, aspect) - self.count(lost, aspect, node)

    def few(self, node: int, aspect: Aspect) -> bool:
        """Whether the node has passed with too few partners to be healthy."""
        good = self.good(node, aspect)
        if len(good) >= limits.CHECK_GOOD:
            return False
        spent = self._spent(node) - good - self._guilty.all_in(aspect)
        left = self.available(node, aspect) - self.count(spent, aspect, node)
        return len(good) < max(1, min(limits.CHECK_GOOD, left))

    def _spent(self, node: int) -> set[int]:
        """The nodes with which this one is tested no more: they were asked twice, are not heard, or are sick."""
        twice = {partner for partner, count in self._views.met.get(node, {}).items() if count >= 2}
        return twice | self._unheard | self._guilty.sick
