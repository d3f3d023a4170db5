"""Which nodes test each other: a schedule in which everyone meets everyone, and a choice for those under suspicion.

The schedule is the circle method, a 1-factorisation: one node stands still, the others go round, and those that face
each other are a pair. In one turn each node is in one pair at most. With an odd number one node rests in each turn. No
chance is needed: the same nodes always meet in the same order.

Not here: who is under suspicion (opinions.py), and when a round ends (check.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

Pair = tuple[int, int]


def pair(one: int, other: int) -> Pair:
    """The two in their order."""
    return (one, other) if one < other else (other, one)


def turns(count: int) -> int:
    """In how many turns everyone of so many nodes meets everyone."""
    return count - 1 + count % 2 if count > 1 else 0


def facing(nodes: Sequence[int], turn: int) -> list[Pair]:
    """The pairs of a turn of the schedule."""
    ring: list[int | None] = [*nodes, None] if len(nodes) % 2 else [*nodes]
    if len(ring) < 2:
        return []
    fixed, moving = ring[0], ring[1:]
    at = turn % len(moving)
    circle = [fixed, *moving[at:], *moving[:at]]
    half = len(circle) // 2
    both = zip(circle[:half], reversed(circle[half:]), strict=True)
    return [pair(one, other) for one, other in both if one is not None and other is not None]


def matching(wanted: Iterable[tuple[int, Iterable[int]]], taken: Collection[int] = ()) -> list[Pair]:
    """Give each node the first free one of the partners that it prefers. A node is in one pair at most."""
    busy = set(taken)
    found = []
    for node, partners in wanted:
        if node in busy:
            continue
        partner = next((one for one in partners if one not in busy and one != node), None)
        if partner is not None:
            busy |= {node, partner}
            found.append(pair(node, partner))
    return found
