"""The stages of an attempt at a repair, and the state table that the attempt follows.

It is a module of its own, since the attempt, its waiting and all readers of an attempt use the stages. It also says
what ranks are told to reach in a stage, and how long that may take. It has no behaviour.
"""

from __future__ import annotations

from enum import Enum, auto

from taskd.core import limits
from taskd.core.table import Table
from taskd.core.types import Stage


class AttemptState(Enum):
    """Where one attempt stands."""

    PLACING = "spare"
    RESTING = "rest"
    QUIESCE = "quiesce"
    REBUILD = "rebuild"
    RESTORE = "restore"
    RESUME = "resume"
    SAVE = "save"
    REDO = "redo"
    ENDED = "ended"


class AttemptCause(Enum):
    """What changes the state of an attempt."""

    PARK = auto()  # every lost rank has a seat
    START = auto()  # every rank starts again: no rank is parked
    WAIT = auto()  # some ranks have no seat: the attempt waits for a spare node
    REST = auto()  # some ranks died again and again: the attempt waits before it starts them once more
    FOLLOWED = auto()  # every rank has followed
    SAVE = auto()  # every rank has parked, to save its state and for nothing else
    FAULT = auto()  # this epoch cannot be repaired


_P, _PC = AttemptState, AttemptCause
_OPEN = (_P.QUIESCE, _P.REBUILD, _P.RESTORE, _P.RESUME, _P.SAVE, _P.REDO)
ATTEMPT = Table(
    "attempt",
    "One attempt at a repair, in one epoch.",
    _P.PLACING,
    [
        (_P.PLACING, _PC.WAIT, _P.PLACING),
        (_P.PLACING, _PC.REST, _P.RESTING),
        (_P.PLACING, _PC.PARK, _P.QUIESCE),
        (_P.PLACING, _PC.START, _P.RESUME),
        ((_P.PLACING, _P.RESTING), _PC.FAULT, _P.ENDED),
        (_P.QUIESCE, _PC.FOLLOWED, _P.REBUILD),
        (_P.QUIESCE, _PC.SAVE, _P.SAVE),
        (_P.SAVE, _PC.FOLLOWED, _P.ENDED),
        (_P.REBUILD, _PC.FOLLOWED, _P.RESTORE),
        (_P.RESTORE, _PC.FOLLOWED, _P.RESUME),
        (_P.RESUME, _PC.FOLLOWED, _P.REDO),
        (_P.REDO, _PC.FOLLOWED, _P.ENDED),
        (_OPEN, _PC.FAULT, _P.ENDED),
    ],
)

STAGE = {
    _P.PLACING: Stage.PARKED,
    _P.RESTING: Stage.PARKED,
    _P.QUIESCE: Stage.PARKED,
    _P.REBUILD: Stage.REBUILT,
    _P.RESTORE: Stage.RESTORED,
    _P.RESUME: Stage.RUNNING,
    _P.SAVE: Stage.SAVED,
    _P.REDO: Stage.RUNNING,
}
"""What the ranks are told to reach in each state."""
ASKED = {
    Stage.PARKED: "park",
    Stage.SAVED: "save",
    Stage.REBUILT: "rebuild",
    Stage.RESTORED: "restore",
    Stage.RUNNING: "resume",
}
"""The stage as a verb."""
ALLOWED_NS = {
    _P.QUIESCE: limits.DEADLINE_QUIESCE_NS,
    _P.REBUILD: limits.DEADLINE_REBUILD_NS,
    _P.RESTORE: limits.DEADLINE_RESTORE_NS,
    _P.SAVE: limits.DEADLINE_SAVE_NS,
    _P.RESUME: limits.DEADLINE_RESUME_NS,
    _P.REDO: limits.DEADLINE_REDO_NS,
}
"""How long a rank that shows no work may take."""
