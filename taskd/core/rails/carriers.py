"""The carriers of a line: which other rails connect the same two nodes, by reports and by decisions.

A module of its own, since four things depend on it: a lost line, a lent rail, the proof of a change and an operator's
wish. It decides nothing and stores nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from taskd.core.rails.records import RESTING
from taskd.core.rails.sightings import Sightings
from taskd.core.rails.standing import Standing
from taskd.core.types import RailState


class Carriers:
    """The rails that carry in place of another one."""

    def __init__(self, standing: Standing, sightings: Sightings) -> None:
        self._standing = standing
        self._sightings = sightings

    def of(self, node: str, name: str, peer: str) -> tuple[str, ...]:
        """The other rails that carry between the two nodes: the borrow plan of a line."""
        return tuple(sorted(self._each(node, name, peer)))

    def any(self, node: str, name: str, peer: str) -> bool:
        """Whether any other rail carries between the two nodes."""
        return any(True for _ in self._each(node, name, peer))

    def of_rail(self, node: str, name: str) -> set[str]:
        """The rails that carry for any line of this rail."""
        peers = self._sightings.peers.get((node, name), set())
        return {other for peer in peers for other in self._each(node, name, peer)}

    def none_left(self, node: str, name: str) -> bool:
        """Whether this rail is the only one that connects the node with some peer."""
        return any(
            self._sightings.between[node, peer][name].report.pairs_up > 0 and not self.any(node, name, peer)
            for peer in self._sightings.peers.get((node, name), set())
        )

    def _each(self, node: str, name: str, peer: str) -> Iterator[str]:
        for other, seen in self._sightings.between.get((node, peer), {}).items():
            if (
                other != name
                and seen.report.pairs_up > 0
                and self._standing.state(node, other, peer) in (RailState.UP, RailState.SUSPECT)
                and self._standing.use(node, other) not in RESTING
                and self._standing.use(peer, other) not in RESTING  # if the rail rests at one end, neither end sends
            ):
                yield other
