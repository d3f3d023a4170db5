"""The messages of workers, agents and the manager about a pause: what is ordered, and where each rank is.

The rules of `core/messages.py` hold, which also lists these messages: levels, not edges; every field is bounded.
They have no behaviour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from taskd.core import limits
from taskd.core.fields import AtMost, Between, Count, Incarnation, RankId, Step, Text
from taskd.core.types import PauseKind


@dataclass(frozen=True, slots=True)
class PauseOrder:
    """What the ranks shall do about a pause. It is repeated until every node holds it. An older number is void, and so
    is an older term of the same number."""

    term: Count
    number: Count  # grows over the whole job
    kind: PauseKind
    step: Step  # for STAND: the step that no rank shall begin
    left_ms: Annotated[int, Between(0, limits.PAUSE_MAX_NS // limits.MS)]  # how long a rank may stand
    counts: bool  # True: that time runs already; False: it runs from the moment in which a rank stands
    reason: Text


@dataclass(frozen=True, slots=True)
class PauseAnswer:
    """Where a rank is, as an answer to the order of this number. It is sent again when that changes."""

    rank: RankId
    incarnation: Incarnation
    number: Count
    begun: Step  # the step that it has begun last; while it stands, the step before the one that it will begin
    limit: Step  # the step that it does not begin; -1: none. It has passed that one if `begun` is not below
    stands: bool
    trouble: Text  # why it cannot be paused


@dataclass(frozen=True, slots=True)
class PauseAnswers:
    """The answers of the ranks of one node, and the number of the order that the node holds."""

    number: Count
    answers: Annotated[tuple[PauseAnswer, ...], AtMost(limits.MAX_RANKS_PER_NODE)]
