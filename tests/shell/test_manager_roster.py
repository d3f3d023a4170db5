"""Which connection speaks for which node. The cost of a connection's end depends only on the nodes that spoke on it,
however many others there are.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.manager.roster import Roster


def test_the_end_of_a_connection_concerns_who_spoke_on_it_last() -> None:
    roster = Roster()
    for node, life, connection in (("a", 1, 10), ("b", 1, 10), ("a", 2, 11), ("c", 1, 12), ("c", 1, 13)):
        roster.spoke(node, life, b"%d" % connection, connection)
    assert roster.lost(10) == ["b"] and len(roster) == 2  # a newer life of a speaks on another connection
    assert roster.lost(12) == [] and roster.lost(12) == []  # c has moved to another connection
    assert roster.place("c").routing == b"13" and roster.lost(13) == ["c"] and len(roster) == 1  # type: ignore[union-attr]


def test_lives_that_are_not_remembered_lose_nothing() -> None:
    roster = Roster()
    for life in range(limits.MAX_KEPT_LIVES + 3):
        roster.spoke("a", life, b"", life)
    assert roster.lost(0) == [] and roster.lost(limits.MAX_KEPT_LIVES + 2) == ["a"]
    roster.refused("a", limits.MAX_KEPT_LIVES + 1)
    assert roster.lost(limits.MAX_KEPT_LIVES + 1) == []


def test_a_loss_looks_at_no_other_node() -> None:
    roster = Roster()
    looked: list[str] = []

    class Watched(dict):  # type: ignore[type-arg]
        def items(self) -> object:
            looked.append("all")
            return super().items()

    roster._places = Watched()
    for at in range(50):
        roster.spoke(f"n{at}", 1, b"", at)
    assert [roster.lost(at) for at in range(50)] == [[f"n{at}"] for at in range(50)]
    assert looked == [] and len(roster) == 0 and roster._nodes == {}
