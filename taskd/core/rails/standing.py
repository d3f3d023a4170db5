"""The decided state of rails: every line that is not simply up, and every rail that is not simply in use.

A module of its own, since all parts of the rails machine read it, while only the decisions (rails) change it. It
decides nothing, and it does NOT know what is reported (sightings).
"""

from __future__ import annotations

from taskd.core.rails.records import RESTING, Rail, Use
from taskd.core.types import RailState


class Standing:
    """The records of rails. A rail without one is in use, and all of its lines are up."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], Rail] = {}  # by node and name

    def state(self, node: str, name: str, peer: str) -> RailState:
        """The state of a line."""
        rail = self.known.get((node, name))
        line = rail.lines.get(peer) if rail is not None else None
        return RailState.UP if line is None else line.state

    def use(self, node: str, name: str) -> Use:
        """Whether a rail carries traffic."""
        rail = self.known.get((node, name))
        return Use.IN_USE if rail is None else rail.use

    def out(self, node: str) -> tuple[str, ...]:
        """The rails of a node that are ordered to carry nothing."""
        return tuple(
            sorted(name for (where, name), rail in self.known.items() if where == node and rail.use in RESTING)
        )

    def named(self, name: str) -> list[Rail]:
        """What is known of the rail of this name, on all nodes."""
        return [rail for rail in self.known.values() if rail.name == name]

    def record(self, node: str, name: str) -> Rail:
        """The record of a rail. It is created if there is none."""
        return self.known.setdefault((node, name), Rail(node, name))

    def forget(self, node: str) -> None:
        """A node is gone. Forget every line from it and to it."""
        for key in [key for key in self.known if key[0] == node]:
            del self.known[key]
        for rail in self.known.values():
            rail.lines.pop(node, None)

    def restart(self, at: int) -> None:
        """The manager was restarted and has missed reports, so all clocks start again."""
        for rail in self.known.values():
            rail.since = at if rail.use in RESTING else rail.since
            rail.proved_at = at
            for line in rail.lines.values():
                line.since = at
