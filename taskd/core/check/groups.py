"""Groups of nodes that reach each other, so that a network that is split does not pass for sick nodes.

Two halves of a network without a connection look like this: a node that meets three nodes of the other half fails with
all of them, though it is well. So a node is only found guilty if it has failed with nodes of every group. Where all is
connected there is one group soon: idle nodes of different groups are tested with each other (suspects.py).

Two nodes are in one group if they have passed a test with each other, or others lead from one to the other. Groups of
less than an eighth of the nodes do not count: those nodes cannot train with the rest in any case.
"""

from __future__ import annotations

from collections.abc import Collection

from taskd.core.check.pairs import Pair, pair
from taskd.core.check.views import Views

_PARTS = 8


class Groups:
    """The groups that follow from the tests so far."""

    def __init__(self, nodes: Collection[int], views: Views) -> None:
        self._views = views
        self._root = {node: node for node in nodes}
        for test in views.tests:
            if test.passed:
                one, other = (self._find(node) for node in test.nodes)
                self._root[one] = other
        members: dict[int, set[int]] = {}
        for node in nodes:
            members.setdefault(self._find(node), set()).add(node)
        self._least = max(2, len(nodes) // _PARTS)
        self._groups = sorted(
            (group for group in members.values() if len(group) > 1), key=lambda one: (-len(one), min(one))
        )

    def untried(self, partners: Collection[int], able: Collection[int]) -> set[int]:
        """The nodes of groups that count and of which none of these partners is a member. `able`: those who can still
        be tested; the others make no group."""
        others = (group for group in self._groups if len(group) >= self._least and not group & set(partners))
        return {one for group in others for one in group & set(able)}

    def bridges(self, free: Collection[int]) -> list[Pair]:
        """Pairs of free nodes that would join each other group to the largest one."""
        if len(self._groups) < 2:
            return []
        hub = sorted(self._groups[0] & set(free))
        met = self._views.met
        found = []
        for group in self._groups[1:]:
            for one in sorted(group & set(free)):
                other = next((end for end in hub if end not in met.get(one, {})), None)
                if other is not None:
                    hub.remove(other)
                    found.append(pair(one, other))
                    break
        return found

    def _find(self, node: int) -> int:
        while self._root[node] != node:
            self._root[node] = self._root[self._root[node]]
            node = self._root[node]
        return node
