"""Where in its script a rank is: which loops, and which pieces of work between them, it has come to.

A newcomer takes its state from a rank that may be further on (the giver): until it has come to the same place, it does
nothing that the state has in it already. Apart, since the loop, a newcomer's way and a repair all read it. It has no
behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Place:
    """Of one session."""

    ends: list[int] = field(default_factory=list)
    """Where each loop that is over has ended, in updates: on every rank, or on this one if its body left it."""
    loops: int = 0
    """How many were entered."""
    works: int = 0
    """How many pieces of work were entered after the first loop."""
    epoch: int = 0
    """Of session.epochs(), from 0."""
    in_epochs: bool = False
    """The script's loops stand in session.epochs()."""
    giver: int = 0
    """How many loops and pieces of work the giver of this rank's state had entered."""

    @property
    def entered(self) -> int:
        """Loops and pieces of work."""
        return self.loops + self.works

    @property
    def giver_is_ahead(self) -> bool:
        """This newcomer is still to come by what the giver of its state has done."""
        return self.entered < self.giver
