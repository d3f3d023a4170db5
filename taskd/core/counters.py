"""Counting what was refused, and why. Alone, since every machine of the core counts with it.

Nothing that a machine drops is dropped silently; shells show the counts (`taskd status`). It keeps numbers only, no
text of the peer's, and its keys are literals of the code, so that nobody outside can make it grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """How often each reason for dropping something applied."""

    by_reason: dict[str, int] = field(default_factory=dict)

    def count(self, reason: str) -> None:
        """One more of this kind."""
        self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
