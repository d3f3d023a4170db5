"""The next decision: when the ladder is asked next, and whether the decision can become unnecessary before that.

Faults come in bursts, and each decision begins another attempt. So faults soon after a decision are gathered and
answered together. The gathering time grows with each attempt. Failure modes, and what follows:

- *Ranks given up for silence return before the decision*: if nothing else is wrong, no decision is made.
- *Something else is wrong* (a refusal, a lost state, a stage that no rank reaches): only a decision can end that.
- *The manager was restarted*: it may have lost the newest events, so it waits for every node's report before it decides
  (attendance).
- *The manager restarts while a decision is pending*: it decides as soon as the nodes have reported.

Invariant: a pending decision has a due time. Not here: what is decided (ladder), and what is done then (decider).
"""

from __future__ import annotations

from enum import Enum, auto

from taskd.core import limits
from taskd.core.table import Table


class DecisionState(Enum):
    """Whether the ladder is to be asked."""

    SETTLED = auto()  # all that has happened has its decision
    GATHERING = auto()  # the ladder is asked soon, unless the missing ranks return before
    TROUBLED = auto()  # the ladder is asked soon, even if ranks return


class DecisionCause(Enum):
    """What changes the state of the decision."""

    WANTED = auto()  # ranks are missing, or there is room for them
    TROUBLE = auto()  # something is wrong besides deaths
    RETURNED = auto()  # no rank is missing any more
    DECIDED = auto()
    CLOSED = auto()  # the incident has ended


_S, _C = DecisionState, DecisionCause
_ANY = (_S.SETTLED, _S.GATHERING, _S.TROUBLED)
DECISION = Table(
    "decision",
    "Whether the ladder is to be asked about the open incident.",
    _S.SETTLED,
    [
        ((_S.SETTLED, _S.GATHERING), _C.WANTED, _S.GATHERING),
        (_S.TROUBLED, _C.WANTED, _S.TROUBLED),
        (_ANY, _C.TROUBLE, _S.TROUBLED),
        (_S.GATHERING, _C.RETURNED, _S.SETTLED),
        (_ANY, _C.DECIDED, _S.SETTLED),
        (_ANY, _C.CLOSED, _S.SETTLED),
    ],
)


class NextDecision:
    """The pending decision, if there is one. Times are the manager's waking time."""

    def __init__(self) -> None:
        self.state = DecisionState.SETTLED
        self.due_at: int | None = None
        self._decided_at: int | None = None  # when the ladder was asked last

    @property
    def pending(self) -> bool:
        """Whether the ladder is to be asked."""
        return self.state is not DecisionState.SETTLED

    def is_due(self, at: int) -> bool:
        """Whether the ladder is to be asked by now."""
        return self.due_at is not None and self.due_at <= at

    def gathered_at(self, at: int, attempts: int, wait_ns: int) -> int:
        """When to ask about a fault of now: at the end of the last decision's gathering time, or after `wait_ns` if
        that time is over. `attempts`: how many attempts the incident has had."""
        if self._decided_at is not None and attempts:
            gathered = self._decided_at + (limits.GATHER_NS << 2 * min(attempts - 1, 3))
            if at < gathered:
                return gathered
        return at + wait_ns

    def want(self, cause: DecisionCause, due_at: int) -> None:
        """The ladder is to be asked at this time. It replaces a time that was set before."""
        self.state = DECISION.after(self.state, cause)
        self.due_at = due_at

    def hurry(self, awaited: int | None, at: int) -> None:
        """Ask now, if the decision waited until `awaited`: what it waited for has come already."""
        if self.pending and self.due_at == awaited:
            self.due_at = at

    def settle(self, cause: DecisionCause) -> None:
        """Drop the pending decision: there is nothing to ask any more."""
        self.state = DECISION.after(self.state, cause)
        self.due_at = None

    def decided(self, at: int) -> None:
        """The ladder is asked now."""
        self.settle(DecisionCause.DECIDED)
        self._decided_at = at

    def restart(self, at: int) -> None:
        """The manager was away: a pending decision is due now, and there is no recent decision to gather after."""
        self.due_at = at if self.pending else None
        self._decided_at = None
