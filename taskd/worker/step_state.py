"""Where a step stands, as a table: what may happen next, and what this rank holds when the step is given up.

| State | What it means |
|---|---|
| IDLE | no step is under way, and taskd's own code runs, or the script's outside of any loop |
| LOOP | the script's code in the body of a loop, before or behind its `with step:` |
| BODY | inside of `with step:`; nothing has moved that all ranks share |
| UPDATING | an optimizer is at work |
| APPLIED | an optimizer has stepped, and none is at work |
| GIVEN_UP | a repair is under way; this rank holds the update of the step whole, or nothing of it |
| TORN | a repair is under way; this rank holds a part of an update, or of another rank's state |

Invariants: an update counts in APPLIED only. A rank in TORN gives its state to nobody. Nobody but a repair leads out of
GIVEN_UP and TORN; one that an error of the script's has left (a signal's handler, say) is gone on with before the next
step. An error of the script's own ends the step without a repair, and so does the end of a rehearsal. Whatever a script
does in whatever order has a row, or is refused with a sentence before it comes here: no script meets an assertion.

Alone, since both the transaction (transaction.py) and what follows its calls (calls.py) ask it. It does nothing.
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
    """What moves it."""

    HANDED_OUT = auto()  # the script's code in the body of its loop goes on
    TAKEN_BACK = auto()  # it has asked for the next step, or left the loop
    ENTERED = auto()  # `with step:`
    OPTIMIZER_BEGAN = auto()
    OPTIMIZER_ENDED = auto()
    COMMITTED = auto()  # the body has reached its end, and nobody has given the step up
    RAISED = auto()  # an error of the script's own has left the body
    REHEARSED = auto()  # the body was run to let a newcomer learn, and nothing of it is kept
    ABANDONED = auto()  # a repair was ordered
    TORE = auto()  # what this rank holds is no longer whole
    MENDED = auto()  # it is whole again
    RESUMED = auto()  # the repair is over


_S, _E = StepState, StepEvent
_UNDER_WAY = (_S.BODY, _S.UPDATING, _S.APPLIED)
STEP = Table(
    "step",
    "One training process between two updates (worker/step_state.py).",
    _S.IDLE,
    [
        # A loop that was left, and is held by a variable, takes no step back.
        ((_S.IDLE, _S.LOOP), _E.HANDED_OUT, _S.LOOP),
        ((_S.IDLE, _S.LOOP), _E.TAKEN_BACK, _S.IDLE),
        # Closed inside of its step, or when an error has left a repair.
        *((state, _E.TAKEN_BACK, state) for state in (*_UNDER_WAY, _S.GIVEN_UP, _S.TORN)),
        ((_S.IDLE, _S.LOOP), _E.ENTERED, _S.BODY),
        # An optimizer may be a part of another one, raise an error that the script goes on behind, or have begun on
        # another thread before this step.
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
        """Go on to the state that the table names. What it does not name is a mistake of ours."""
        self.state = STEP.after(self.state, event)

    @property
    def under_way(self) -> bool:
        """Whether the script is inside of `with step:`."""
        return self.state in _UNDER_WAY

    @property
    def in_repair(self) -> bool:
        """Whether a repair is under way."""
        return self.state in (StepState.GIVEN_UP, StepState.TORN)
