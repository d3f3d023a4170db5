"""What the guard announced: has an operation failed, or is it late and goes on? The second is evidence of its own kind.

The guard knows how long an operation of a kind has ever taken in this job, and announces one that takes ten times the
longest, 5 s at least, which then goes on (csrc/c10d/rhythm.hpp). It announces failures the same way, and says in words
which of the two it means; these are read here and nowhere else.

Not here: what follows. Of a failure much may (failures.py), of lateness nothing but a word.
"""

from __future__ import annotations

import re

from taskd.core.messages import Evidence
from taskd.core.types import EvidenceKind
from taskd.core.words import cut, late_words

USUAL = "at least ten times its usual longest"
_WORDS = re.compile(r"no answer within (\d{1,15}) ms, far longer than it ever took in this job")
"""As csrc/c10d/lane_judge.cpp says it."""


def evidence_of(rank: int, incarnation: int, group: str, kind: str, sequence: int, words: str) -> Evidence | None:
    """That this rank waits for an operation which is late; None: what was announced is a failure."""
    found = _WORDS.fullmatch(words)
    if found is None:
        return None
    operation = cut(f"{kind} #{sequence} of group {group}" if sequence else f"{kind} of group {group}")
    return Evidence(EvidenceKind.COLLECTIVE_LATE, -1, incarnation, rank, 0, USUAL, operation, int(found[1]))


def sentence(evidence: Evidence) -> str:
    """The same for this rank's own log."""
    return late_words(f"rank {evidence.witness}", evidence.operation, evidence.waited_ms, evidence.reason)
