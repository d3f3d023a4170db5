"""When the ladder is asked next, and whether the need for that can pass by itself.

Faults come in bursts, and each decision begins another attempt. So what follows a decision at once is gathered and
answered together, for longer with each attempt. What can go wrong, and what follows:

- *Ranks that were given up for their silence return before the decision*: if nothing else is wrong, none is taken.
- *Something else is wrong* (a refusal, a lost state, a stage that nobody reaches): only a decision ends that.
- *The manager is back*: it may have forgotten the newest, so it hears every node out before it decides (attendance).
- *The manager restarts while a decision is due*: it is taken as soon as the nodes have been heard.

Invariant: a decision that is due has a time. Not here: what is decided (ladder), and what is done then (decider).
"""

from __future__ import annotations

from enum import Enum, auto

from taskd.core import limits
from taskd.core.table import Table


class DecisionState(Enum):
    """Whether the ladder is to be asked."""

    SETTLED = auto()  # what has happened is decided upon
    GATHERING = auto()  # it is asked soon; if those who are missing return before, it need not be
    TROUBLED = auto()  # it is asked soon, and nobody's return makes that needless


class DecisionCause(Enum):
    """What moves it."""

    WANTED = auto()  # ranks are missing, or there is room for them
    TROUBLE = auto()  # something is wrong besides deaths
    RETURNED = auto()  # nobody is missing any more
    DECIDED = auto()
    CLOSED = auto()  # the incident has come to its end


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
    """The decision that is due, if one is. Times are the manager's waking time."""

    def __init__(self) -> None:
        self.state = DecisionState.SETTLED
        self.due_at: int | None = None
        self._decided_at: int | None = None  # when the ladder was asked last

    @property
    def pending(self) -> bool:
        """The ladder is to be asked."""
        return self.state is not DecisionState.SETTLED

    def is_due(self, at: int) -> bool:
        """It is to be asked by now."""
        return self.due_at is not None and self.due_at <= at

    def gathered_at(self, at: int, attempts: int, wait_ns: int) -> int:
        """When to ask about what happens now: after `wait_ns`, or with what else happens just after the last decision.
        `attempts`: how many the incident has had."""
        if self._decided_at is not None and attempts:
            gathered = self._decided_at + (limits.GATHER_NS << 2 * min(attempts - 1, 3))
            if at < gathered:
                return gathered
        return at + wait_ns

    def want(self, cause: DecisionCause, due_at: int) -> None:
        """The ladder is to be asked at this time; a time that was set before does not count any more."""
        self.state = DECISION.after(self.state, cause)
        self.due_at = due_at

    def hurry(self, awaited: int | None, at: int) -> None:
        """What it has waited for until `awaited` has come already."""
        if self.pending and self.due_at == awaited:
            self.due_at = at

    def settle(self, cause: DecisionCause) -> None:
        """There is nothing to ask any more."""
        self.state = DECISION.after(self.state, cause)
        self.due_at = None

    def decided(self, at: int) -> None:
        """The ladder is asked now."""
        self.settle(DecisionCause.DECIDED)
        self._decided_at = at

    def restart(self, at: int) -> None:
        """The manager was away: what is due is due now, and nothing has just been decided."""
        self.due_at = at if self.pending else None
        self._decided_at = None
