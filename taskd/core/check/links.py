"""Links in doubt: what is between two nodes that are well with others, and fail or are slow with each other.

A link is at fault if its last two tests were bad and both nodes say so. Of a time it takes three tests, since a time
may be long by chance. The faults of a node, and slowness that follows from it, are not held against its links."""

from __future__ import annotations

from collections.abc import Collection

from taskd.core.check.guilt import Guilty
from taskd.core.check.pairs import Pair
from taskd.core.check.views import Aspect, Kind, Seen, Views
from taskd.core.check.witnesses import Witnesses


class Links:
    """The tests of each link that was bad once."""

    def __init__(self) -> None:
        self.by: dict[tuple[Pair, Aspect], list[Seen]] = {}

    def find(self, views: Views, guilty: Guilty, witnesses: Witnesses, unheard: Collection[int]) -> None:
        """Collect them, once it is known who is guilty."""
        for aspect, by in views.by.items():
            if aspect.kind not in (Kind.RAIL, Kind.PACE):
                continue
            for node, seen in by.items():
                for nodes in {one.test.nodes for one in seen if not one.good and one.test.nodes[0] == node}:
                    tests = [one for one in seen if one.test.nodes == nodes]
                    heard = not set(unheard) & set(nodes)
                    well = (_well(one, aspect, guilty, witnesses) for one in tests if not one.good)
                    if heard and any(well):
                        self.by[(nodes, aspect)] = tests

    def settled(self, nodes: Pair, aspect: Aspect) -> bool:
        """Whether the link between these nodes is at fault."""
        wanted = 3 if aspect.kind is Kind.PACE else 2
        last = self.by.get((nodes, aspect), [])[-wanted:]
        return len(last) == wanted and not any(one.good or not one.test.whole for one in last)

    def doubtful(self) -> list[Pair]:
        """The links whose last test was bad, and that have to be tried again."""
        bad = (key for key, seen in self.by.items() if not seen[-1].good and not self.settled(*key))
        return sorted({nodes for nodes, _ in bad})


def _well(one: Seen, aspect: Aspect, guilty: Guilty, witnesses: Witnesses) -> bool:
    """Whether both nodes of a test were well in this aspect."""
    both = one.test.nodes
    if any(guilty.worthless(end, one, aspect) for end in both):
        return False
    if aspect.kind is Kind.PACE and any(guilty.late(end) for end in both):
        return False
    return all(witnesses.good(end, aspect) - set(both) for end in both)
