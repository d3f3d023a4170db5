"""Tells late operations from failed ones in what the guard announces. Lateness is evidence of its own kind.

The guard knows the longest time that an operation of each kind has taken in this job. It announces an operation that
takes ten times as long, and 5 s at least; the operation goes on (csrc/c10d/rhythm.hpp). It announces failures the same
way. The words of the announcement tell which of the two it is. These words are read only here.

Not here: what follows. A failure may have many consequences (failures.py); a late operation is only reported.
"""

from __future__ import annotations

import re

from taskd.core.messages import Evidence
from taskd.core.types import EvidenceKind
from taskd.core.words import cut, late_words

USUAL = "at least ten times its usual longest"
_WORDS = re.compile(r"no answer within (\d{1,15}) ms, far longer than it ever took in this job")
"""The words of csrc/c10d/lane_judge.cpp."""


def evidence_of(rank: int, incarnation: int, group: str, kind: str, sequence: int, words: str) -> Evidence | None:
    """Return the evidence that this rank waits for a late operation; None: the announcement is a failure."""
    found = _WORDS.fullmatch(words)
    if found is None:
        return None
    operation = cut(f"{kind} #{sequence} of group {group}" if sequence else f"{kind} of group {group}")
    return Evidence(EvidenceKind.COLLECTIVE_LATE, -1, incarnation, rank, 0, USUAL, operation, int(found[1]))


def sentence(evidence: Evidence) -> str:
    """Return the same as a sentence for this rank's own log."""
    return late_words(f"rank {evidence.witness}", evidence.operation, evidence.waited_ms, evidence.reason)
