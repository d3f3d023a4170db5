"""The place of a rank in its script: which loops, and which pieces of work between them, it has reached.

A newcomer takes its state from another rank (the giver), which may be further on. Until the newcomer has reached the
same place, it must not repeat work that the state already contains. This is a module of its own because the loop,
newcomer.py and the repair all read it. It has no behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Place:
    """The place of one session."""

    ends: list[int] = field(default_factory=list)
    """The update count at which each completed loop ended: on every rank, or on this rank if its body left the loop."""
    loops: int = 0
    """How many loops were entered."""
    works: int = 0
    """How many pieces of work were entered after the first loop."""
    epoch: int = 0
    """The epoch of session.epochs(), counted from its first one as 0."""
    in_epochs: bool = False
    """Whether the script's loops are inside session.epochs()."""
    uneven: bool = False
    """Whether a loop has ended, or may end, after more steps on some ranks than on others."""
    giver: int = 0
    """How many loops and pieces of work the giver of this rank's state had entered."""

    @property
    def entered(self) -> int:
        """The number of loops and pieces of work that were entered."""
        return self.loops + self.works

    @property
    def giver_is_ahead(self) -> bool:
        """Whether this newcomer has not yet reached the place of the giver of its state."""
        return self.entered < self.giver
