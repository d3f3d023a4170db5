"""Which connection speaks for which node, so that the manager's answers find their way back.

A node's place is the connection on which its agent's life spoke last. Two lives of one node may speak at once (an
agent that was replaced and does not know it yet, or one started under another's name); which of them holds the node
is the core's to say: it answers the others by their life, and from then on they are passed over here.

It does NOT send anything and believes no message.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core import limits


@dataclass
class Place:
    """Where one life of a node's agent can be reached."""

    life: int
    routing: bytes
    connection: int
    refused: bool = False


class Roster:
    """The places of all nodes; a few lives for each, the one that spoke last at the end."""

    def __init__(self) -> None:
        self._places: dict[str, list[Place]] = {}
        self._nodes: dict[int, dict[str, None]] = {}  # that have spoken on a connection, in order

    def spoke(self, node: str, life: int, routing: bytes, connection: int) -> None:
        """A life of a node's agent said something on this connection."""
        places = self._places.get(node)
        if places is None:
            if len(self._places) >= 2 * limits.MAX_NODES:
                return  # more names than a job may have nodes: the core refuses them, and the answer is lost
            places = self._places[node] = []
        self._nodes.setdefault(connection, {})[node] = None
        for place in places:
            if place.life == life:
                place.routing, place.connection = routing, connection
                return
        places.append(Place(life, routing, connection))
        del places[: -limits.MAX_KEPT_LIVES]

    def refused(self, node: str, life: int) -> None:
        """The core does not take this life for the node's agent."""
        for place in self._places.get(node, ()):
            if place.life == life:
                place.refused = True

    def place(self, node: str, life: int = 0) -> Place | None:
        """Where to send: that life's place, or with 0 the newest life's that was not refused."""
        found = [place for place in self._places.get(node, ()) if (place.life == life if life else not place.refused)]
        return found[-1] if found else None

    def lost(self, connection: int) -> list[str]:
        """Forget a connection; the nodes whose agent spoke on it. Costs nothing for those that never did."""
        silent = []
        for node in self._nodes.pop(connection, ()):
            lead = self.place(node)
            if lead is not None and lead.connection == connection:
                silent.append(node)
            left = [place for place in self._places.get(node, ()) if place.connection != connection]
            if left:
                self._places[node] = left
            else:
                self._places.pop(node, None)
        return silent

    def __len__(self) -> int:
        return len(self._places)
