"""Counts what was refused, by reason. A module of its own, because every state machine of the core uses it.

A machine drops nothing silently, and shells show the counts (`taskd status`). The counters keep only numbers, no text
of the peer. Their keys are literals in the code, so no peer can make them grow.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """How often each reason for dropping something applied."""

    by_reason: dict[str, int] = field(default_factory=dict)

    def count(self, reason: str) -> None:
        """Count one more for this reason."""
        self.by_reason[reason] = self.by_reason.get(reason, 0) + 1
