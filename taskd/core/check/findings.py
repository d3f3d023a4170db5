"""What a check says in the end: one verdict for each node, and those about rails and links that are not well.

Every verdict has its reason as a sentence and names its witnesses. A finding about a node says what is wrong with the
node itself. A rail or a link that others can do without leaves the node its good finding, or makes it a straggler.

Which nodes leave is decided here, too, because it must not depend on who reads a verdict: a node leaves only if its
fault is proved. One that is undecided stays, and so does a liar: its work may be right, and nobody is harmed by its
times."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Finding(Enum):
    """What is known of a node."""

    HEALTHY = "healthy"
    DOWN = "down"  # it answers nobody, or cannot exchange anything with anybody
    WRONG = "wrong results"  # what it computes or sends is wrong
    UNLIKE = "unlike the others"  # it has another version of torch than most nodes
    LIES = "lies"  # it says other things than all of its partners see
    STRAGGLER = "straggler"  # much slower than the others; the components say in what
    UNDECIDED = "undecided"


class Harm(Enum):
    """What is wrong with a rail or a link."""

    DEAD = "dead"
    CORRUPT = "corrupts data"
    SLOW = "slow"
    MISSING = "missing"  # most other nodes have this rail
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What is known of one node."""

    node: int
    finding: Finding
    components: tuple[str, ...]  # in what it is slow: compute, memory, rail NAME
    reason: str
    witnesses: tuple[str, ...]  # `node 3`, `the manager`, `itself`

    def leaves(self, exclude_straggler: bool) -> bool:
        """Whether the node does not train."""
        proved = self.finding in (Finding.DOWN, Finding.WRONG, Finding.UNLIKE)
        return proved or (exclude_straggler and self.finding is Finding.STRAGGLER)


@dataclass(frozen=True, slots=True)
class RailVerdict:
    """A rail of one node, or the rail of all nodes, that is not well."""

    rail: str
    node: int | None  # None: of all nodes
    harm: Harm
    reason: str
    witnesses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LinkVerdict:
    """What is between two nodes that are well apart from it, or of which nobody can say which one is not."""

    nodes: tuple[int, int]
    rail: str  # empty: all of them
    harm: Harm
    reason: str
    witnesses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """All verdicts of a check."""

    nodes: tuple[NodeVerdict, ...]
    rails: tuple[RailVerdict, ...]
    links: tuple[LinkVerdict, ...]
    rounds: int
    turns: int

    def leaving(self, exclude_straggler: bool) -> tuple[int, ...]:
        """The nodes that do not train."""
        return tuple(one.node for one in self.nodes if one.leaves(exclude_straggler))
