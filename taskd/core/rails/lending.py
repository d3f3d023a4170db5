"""The lending of rails: which rail is lent because most of its lines are lost, and which lent rail comes back.

The transport handles a single line. This module judges a rail of a node as a whole. The same rail of several nodes is
lent together and comes back together. Failure modes, and what follows:

- *The same rail of another node is a moment behind*: before a rail is lent, its lines are looked at on all nodes. A
  rail that comes back waits for a moment.
- *No other rail is left between two nodes*: the lent rail comes back, whatever its state.
- *A rank could not put the rail back*: the rank is asked again only after a pause.

It changes nothing, and it does NOT look at a change that is under way (verification).
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.core import limits
from taskd.core.events import RailVerdict
from taskd.core.rails.carriers import Carriers
from taskd.core.rails.records import Rail, Use
from taskd.core.rails.sightings import Sightings
from taskd.core.rails.standing import Standing
from taskd.core.types import RailFinding, RailState
from taskd.core.words import join, verb


class Lending:
    """Finds the next change of use that the lines call for."""

    def __init__(self, standing: Standing, sightings: Sightings, carriers: Carriers) -> None:
        self._standing = standing
        self._sightings = sightings
        self._carriers = carriers

    def wanted(self) -> str:
        """A rail to lend: on some node most of its lines are lost, and other rails can carry. Empty: none."""
        return next((rail.name for rail in self._standing.known.values() if self._lendable(rail)), "")

    def lend(self, name: str) -> RailVerdict:
        """The verdict to lend the rail that `wanted` named: all nodes where it is lent, and the rails that carry."""
        nodes = tuple(rail.node for rail in self._standing.known.values() if rail.name == name and self._lendable(rail))
        plan = sorted({one for node in nodes for one in self._carriers.of_rail(node, name)})
        carry = verb(len(plan), "carries", "carry")
        reason = f"most of its lines are lost, {join(plan)} {carry} until it has proved itself"
        return RailVerdict(RailFinding.LEND, name, nodes, (), reason, tuple(plan))

    def _lendable(self, rail: Rail) -> bool:
        node, name = rail.node, rail.name
        if rail.use is not Use.IN_USE or rail.refused:
            return False
        peers = self._sightings.peers.get((node, name), set())
        others = peers - {node} or peers  # traffic of a node with itself crosses no cable
        lost = sum(self._standing.state(node, name, peer) in (RailState.DOWN, RailState.PROBING) for peer in others)
        return 2 * lost > len(others) and all(self._carriers.any(node, name, peer) for peer in peers)

    def come_back(self, at: int, repairing: bool) -> RailVerdict | None:
        """The verdict about lent rails that come back: all their lines are proved, or no other rail is left."""
        for rail in self._standing.known.values():
            if rail.use is Use.LENT and not repairing and self._ready(rail, at) and self._ready_for_so_long(rail, at):
                nodes = self._lent(rail.name, lambda other: self._ready(other, at))
                used = any(self._sightings.peers.get((node, rail.name)) for node in nodes)
                why = "all of its lines have proved themselves" if used else "nobody uses it any more"
                return RailVerdict(RailFinding.RETURN, rail.name, nodes, (), why)
            if self._needed(rail, at):
                nodes = self._lent(rail.name, lambda other: self._needed(other, at))
                return RailVerdict(RailFinding.RETURN, rail.name, nodes, (), "no other rail is left")
        return None

    @staticmethod
    def _ready(rail: Rail, at: int) -> bool:
        return not rail.lines and at - rail.since >= rail.back_off_ns

    @staticmethod
    def _ready_for_so_long(rail: Rail, at: int) -> bool:
        """Whether the rail has been ready for a moment. Other nodes may be behind, and their rails go together."""
        return at - max(rail.proved_at, rail.since + rail.back_off_ns) >= limits.RAIL_GATHER_NS

    def _lent(self, name: str, wanted: Callable[[Rail], bool]) -> tuple[str, ...]:
        known = self._standing.known.values()
        return tuple(rail.node for rail in known if rail.name == name and rail.use is Use.LENT and wanted(rail))

    def _needed(self, rail: Rail, at: int) -> bool:
        """Whether a lent rail is the only one left. A rank that could not put it back is asked only after a pause."""
        pause = rail.refused and at - rail.since < rail.back_off_ns
        return rail.use is Use.LENT and not pause and self._carriers.none_left(rail.node, rail.name)
