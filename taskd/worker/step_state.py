"""The states of a step, as a table: what may happen next, and what this rank holds when the step is given up.

| State | What it means |
|---|---|
| IDLE | no step runs; taskd's own code runs, or the script's code outside of any loop |
| LOOP | the script's code runs in the body of a loop, before or after its `with step:` |
| BODY | inside of `with step:`; no state that all ranks share has changed |
| UPDATING | an optimizer is stepping |
| APPLIED | an optimizer has stepped, and none is stepping |
| GIVEN_UP | a repair runs; this rank holds the complete update of the step, or nothing of it |
| TORN | a repair runs; this rank holds a part of an update, or a part of another rank's state |

Invariants: an update counts in APPLIED only. A rank in TORN gives its state to no other rank. Only a repair leads out
of GIVEN_UP and TORN. If an error of the script has left a repair (for example from a signal handler), the repair is
continued before the next step. The script's own error ends the step without a repair, and so does the end of a
rehearsal. Every order of actions that a script can take has a row, or is refused with a sentence before it gets here:
no script runs into an assertion.

This is a module of its own because both the transaction (transaction.py) and calls.py use it. It does nothing itself.
"""

from __future__ import annotations

from enum import Enum, auto

from taskd.core.table import Table


class StepState(Enum):
    """See above."""

    IDLE = auto()
    LOOP = auto()
    BODY = auto()
    UPDATING = auto()
    APPLIED = auto()
    GIVEN_UP = auto()
    TORN = auto()


class StepEvent(Enum):
    """The events that change the state."""

    HANDED_OUT = auto()  # the script's code in the body of its loop goes on
    TAKEN_BACK = auto()  # the script has asked for the next step, or left the loop
    ENTERED = auto()  # `with step:`
    OPTIMIZER_BEGAN = auto()
    OPTIMIZER_ENDED = auto()
    COMMITTED = auto()  # the body has reached its end, and the step was not given up
    RAISED = auto()  # the script's own error has left the body
    REHEARSED = auto()  # the body was run to let a newcomer learn, and nothing of it is kept
    ABANDONED = auto()  # a repair was ordered
    TORE = auto()  # the state of this rank is no longer complete
    MENDED = auto()  # the state of this rank is complete again
    RESUMED = auto()  # the repair is over


_S, _E = StepState, StepEvent
_UNDER_WAY = (_S.BODY, _S.UPDATING, _S.APPLIED)
STEP = Table(
    "step",
    "One training process between two updates (worker/step_state.py).",
    _S.IDLE,
    [
        # A loop that was left, but is still held by a variable, takes no step back.
        ((_S.IDLE, _S.LOOP), _E.HANDED_OUT, _S.LOOP),
        ((_S.IDLE, _S.LOOP), _E.TAKEN_BACK, _S.IDLE),
        # The loop was closed inside of its step, or an error has left a repair.
        *((state, _E.TAKEN_BACK, state) for state in (*_UNDER_WAY, _S.GIVEN_UP, _S.TORN)),
        ((_S.IDLE, _S.LOOP), _E.ENTERED, _S.BODY),
        # An optimizer may be a part of another one. It may raise an error that the script catches, or it may have begun
        # on another thread before this step.
        (_UNDER_WAY, _E.OPTIMIZER_BEGAN, _S.UPDATING),
        (_UNDER_WAY, _E.OPTIMIZER_ENDED, _S.APPLIED),
        (_UNDER_WAY, _E.COMMITTED, _S.IDLE),
        (_UNDER_WAY, _E.RAISED, _S.IDLE),
        (_UNDER_WAY, _E.REHEARSED, _S.IDLE),
        ((_S.IDLE, _S.LOOP, *_UNDER_WAY), _E.ABANDONED, _S.GIVEN_UP),
        ((_S.GIVEN_UP, _S.TORN), _E.TORE, _S.TORN),
        ((_S.GIVEN_UP, _S.TORN), _E.MENDED, _S.GIVEN_UP),
        ((_S.GIVEN_UP, _S.TORN), _E.RESUMED, _S.IDLE),
    ],
)


class StepMachine:
    """The state of one session's step."""

    def __init__(self) -> None:
        self.state = StepState.IDLE

    def happens(self, event: StepEvent) -> None:
        """Go to the state that the table names. An event that it does not name is a bug in taskd."""
        self.state = STEP.after(self.state, event)

    @property
    def under_way(self) -> bool:
        """Whether the script is inside of `with step:`."""
        return self.state in _UNDER_WAY

    @property
    def in_repair(self) -> bool:
        """Whether a repair is running."""
        return self.state in (StepState.GIVEN_UP, StepState.TORN)
