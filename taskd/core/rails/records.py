"""The records of rails, and the two state tables that they follow: the state of a line, and the use of a rail.

A *line* is one rail of a node toward one peer node. The transport itself moves traffic away from a bad line within
milliseconds. These records hold what lasts. They are flat and decide nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from taskd.core import limits
from taskd.core.repair.incident import Incident
from taskd.core.table import Table
from taskd.core.times import long_ago
from taskd.core.types import RailState


class RailCause(Enum):
    """What changes the state of a line."""

    SILENT = auto()
    ANSWERED = auto()
    LOST = auto()
    CONNECTED = auto()  # it answers again: from now on its probes are counted
    PROVED = auto()  # it answered often enough, for long enough


_R, _RC = RailState, RailCause
RAIL = Table(
    "rail",
    "One rail of a node toward one peer node.",
    _R.UP,
    [
        (_R.UP, _RC.SILENT, _R.SUSPECT),
        (_R.SUSPECT, _RC.ANSWERED, _R.UP),
        ((_R.UP, _R.SUSPECT, _R.PROBING), _RC.LOST, _R.DOWN),
        (_R.DOWN, _RC.CONNECTED, _R.PROBING),
        (_R.PROBING, _RC.PROVED, _R.UP),
    ],
)


class Use(Enum):
    """Whether a rail of a node carries traffic, as far as the manager decides it."""

    IN_USE = "in use"
    LENT = "borrowed"  # other rails carry for it until it has proved itself
    OUT = "out"  # an operator took it out
    RETURNING = "returning"  # it may carry again, but bytes have not flowed on every rank yet


class UseCause(Enum):
    """What changes the use of a rail."""

    LEND = auto()
    TAKE_OUT = auto()
    PUT_BACK = auto()  # by an operator
    RETURN = auto()  # by K good probes and a quiet time
    VERIFIED = auto()
    ROLL_BACK = auto()  # no bytes flowed, not for every pair, or it was lost again, or a rank could not put it back
    REFUSED = auto()  # ranks cannot follow: it stays as it was


_U, _UC = Use, UseCause
USE = Table(
    "use of a rail",
    "Whether a rail of a node carries traffic.",
    _U.IN_USE,
    [
        (_U.IN_USE, _UC.LEND, _U.LENT),
        ((_U.IN_USE, _U.LENT), _UC.TAKE_OUT, _U.OUT),
        (_U.OUT, _UC.PUT_BACK, _U.RETURNING),
        (_U.LENT, _UC.RETURN, _U.RETURNING),
        (_U.RETURNING, _UC.VERIFIED, _U.IN_USE),
        (_U.RETURNING, _UC.ROLL_BACK, _U.LENT),
        ((_U.LENT, _U.OUT), _UC.REFUSED, _U.IN_USE),
    ],
)
RESTING = frozenset({Use.LENT, Use.OUT})
"""Uses in which a rail is ordered to carry nothing."""
CARRIES = "the rail carries again"


@dataclass(slots=True, eq=False)
class Line:
    """One rail of a node toward one peer node, as decided. What was only reported is in sightings.py."""

    peer: str
    state: RailState = RailState.UP
    since: int = 0  # the manager's waking time
    borrowers: tuple[str, ...] = ()  # rails that carried for it when it was lost


@dataclass(slots=True, eq=False)
class Rail:
    """One rail of one node."""

    node: str
    name: str
    use: Use = Use.IN_USE
    since: int = 0
    reason: str = ""
    lines: dict[str, Line] = field(default_factory=dict)  # by peer; only those that are not UP
    back_off_ns: int = limits.RAIL_QUIET_NS
    returned_at: int | None = None  # when it was last put back into use
    worsened_at: int | None = None
    proved_at: int = 0  # when its last line had proved itself
    refused: bool = False  # a rank could not follow: not lent again before its lines are well

    def move(self, cause: UseCause, at: int, reason: str) -> None:
        """Apply one row of the table for the use of a rail."""
        self.use, self.since, self.reason = USE.after(self.use, cause), at, reason

    def worsen(self, at: int, unproved: bool) -> None:
        """The rail was lost. The back-off doubles if it was not proved yet (`unproved`) or has returned recently."""
        if not long_ago(self.worsened_at, at, limits.RAIL_GATHER_NS):
            return
        self.worsened_at = at
        steady = not unproved and long_ago(self.returned_at, at, limits.RAIL_STEADY_NS)
        self.back_off_ns = limits.RAIL_QUIET_NS if steady else min(2 * self.back_off_ns, limits.RAIL_BACK_OFF_MAX_NS)

    @property
    def is_lost(self) -> bool:
        """Whether any line of the rail is lost."""
        return any(line.state in (RailState.DOWN, RailState.PROBING) for line in self.lines.values())

    @property
    def idle(self) -> bool:
        """Whether nothing but its back-off has to be remembered."""
        return self.use is Use.IN_USE and not self.lines


@dataclass(slots=True, eq=False)
class Shuffle:
    """The one change of use under way: ordered, then followed by every rank, then (for a return) proved by bytes."""

    rail: str
    nodes: tuple[str, ...]
    number: int  # the number of its orders
    began_at: int
    returns: bool
    operator: bool
    ends_at: int  # ranks that have not followed by then are named, and other changes get their turn
    followed: bool = False
    outcome: str = ""  # done, late or undone, once it has ended; for the operator
    words: str = ""


@dataclass(slots=True, eq=False)
class Trouble:
    """The open incident of one rail, and its cost."""

    incident: Incident
    end: str = CARRIES  # the words with which it will end
    borrowed: int = 0  # bytes that other rails carried meanwhile, on the nodes where it was lost
    hedged: int = 0  # frames that also went out on another rail
    retransmitted: int = 0
