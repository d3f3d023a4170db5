"""What the manager does about an operation that is far beyond its rhythm: it says so, once, and does nothing else.

A slow rank is not a failed collective. Who waits tells that it waits; that proves nothing about anybody, so it is no
witness for silence, opens no incident and ends no rank. Every rank of a group may wait for the same operation: the
first one's word is the event, the others' add nothing to it.

What the manager knows of the others goes with it: whom the word names, and who is silent. It does NOT guess who is
waited for: how far each rank is in its step is told in quiet beats, which no journal holds and no decision may rest on.
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.messages import Evidence
from taskd.core.types import RankState
from taskd.core.words import late_words, rank_words, verb


class Lateness:
    """Which late operations have been said."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._said: dict[tuple[int, str], None] = {}  # by epoch, in which operations are numbered anew

    def told(self, evidence: Evidence, seen_by: str, node: str) -> None:
        """A rank on this node waits for an operation."""
        operation = (self._job.epoch, evidence.operation)
        if operation in self._said:
            return
        if len(self._said) >= limits.MAX_KEPT_LATE:
            del self._said[next(iter(self._said))]
        self._said[operation] = None
        text = late_words(seen_by, evidence.operation, evidence.waited_ms, evidence.reason) + self._others(evidence)
        self._job.note("late", text, evidence.witness, node, incident=0)

    def _others(self, evidence: Evidence) -> str:
        """What is known of those that it may wait for."""
        members = self._job.members
        named = f"; it waits for rank {evidence.rank}" if members.find(evidence.rank) is not None else ""
        silent = members.in_state(RankState.SUSPECT)
        return named + (f"; {rank_words(silent)} {verb(len(silent), 'is', 'are')} silent" if silent else "")
