"""Which connection belongs to which node, so that the manager's answers reach the right agent.

A node's place is the connection on which its agent spoke last. Two agents ("lives") of one node may speak at the same
time. One may have been replaced without knowing it yet, or may have been started under another node's name. The core
decides which of them holds the node. It answers the others by their life, and from then on they are skipped here.

It does NOT send anything and believes no message.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core import limits


@dataclass
class Place:
    """The address of one life of a node's agent."""

    life: int
    routing: bytes
    connection: int
    refused: bool = False


class Roster:
    """The places of all nodes: a few lives for each, the newest at the end."""

    def __init__(self) -> None:
        self._places: dict[str, list[Place]] = {}
        self._nodes: dict[int, dict[str, None]] = {}  # the nodes that have spoken on each connection, in order

    def spoke(self, node: str, life: int, routing: bytes, connection: int) -> None:
        """Note that this life of a node's agent sent something on this connection."""
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
        """Note that the core does not accept this life as the node's agent."""
        for place in self._places.get(node, ()):
            if place.life == life:
                place.refused = True

    def place(self, node: str, life: int = 0) -> Place | None:
        """Where to send: the place of this life, or with 0 that of the newest life that was not refused."""
        found = [place for place in self._places.get(node, ()) if (place.life == life if life else not place.refused)]
        return found[-1] if found else None

    def lost(self, connection: int) -> list[str]:
        """Forget a connection; returns the nodes whose agent has its place there. Cheap if no agent spoke on it."""
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
