"""Who is guilty of what so far, and what the word of a guilty node is still worth.

Guilt settles over several passes: a node that is found guilty in one pass is no witness in the next one. What it saw
before it was at fault still counts; what a liar says never does. Nothing is judged here (opinions.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core.check.views import COMPUTE, MEMORY, REACH, Aspect, Kind, Seen


@dataclass(frozen=True, slots=True)
class Guilt:
    """A node that is guilty in an aspect."""

    seen: tuple[Seen, ...]
    own: str  # who besides the partners says so: `itself`, `its host`, `its agent`, `the manager`; empty: nobody
    since: int  # the turn of the whole check from which on it is guilty

    @property
    def partners(self) -> list[int]:
        """The witnesses."""
        return sorted({one.partner for one in self.seen})


class Guilty:
    """All guilty nodes, by aspect."""

    def __init__(self) -> None:
        self.by: dict[Aspect, dict[int, Guilt]] = {}
        self.liars: set[int] = set()
        self.sick: set[int] = set()
        """The nodes that are guilty in anything, or seemed so before liars were known."""

    def find(self, node: int, aspect: Aspect) -> Guilt | None:
        """Of what this node is guilty in this aspect."""
        return self.by.get(aspect, {}).get(node)

    def late(self, node: int) -> bool:
        """Whether the node is slow at all it does. Then its rails look slow, too."""
        return self.find(node, COMPUTE) is not None or self.find(node, MEMORY) is not None

    def condemned(self, node: int, aspect: Aspect) -> bool:
        """Whether nothing more is to be asked about the node in this aspect."""
        return node in self.all_in(aspect)

    def worthless(self, witness: int, seen: Seen, aspect: Aspect) -> bool:
        """Whether this node was at fault itself when this was seen."""
        found = (self.find(witness, about) for about in (REACH, aspect))
        return witness in self.liars or any(one is not None and seen.test.order >= one.since for one in found)

    def all_in(self, aspect: Aspect) -> set[int]:
        """The nodes that are no witnesses in this aspect any more."""
        return {*self.liars, *self.by.get(REACH, {}), *self.by.get(aspect, {})}

    def close_pass(self) -> None:
        """Take note of liars and sick nodes at the end of a pass."""
        self.sick |= {node for found in self.by.values() for node in found}
        self.liars = {node for aspect, found in self.by.items() if aspect.kind is Kind.WORD for node in found}
