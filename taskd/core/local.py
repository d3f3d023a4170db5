"""The agent's record of each rank of its node, and the transition table of the rank's process.

The record is flat and turns into a `RankReport`. It decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from taskd.core.messages import Order, RankReport
from taskd.core.table import Table
from taskd.core.types import NOTHING_KEPT, PROGRESS, Cover, Kept, Phase, RankState, Stage


class LocalCause(Enum):
    """What changes the state of a local rank."""

    HELLO = auto()
    ENDED_WELL = auto()
    ENDED_BADLY = auto()
    START_FAILED = auto()


class LastWord(Enum):
    """What a process has said of its own end, which follows."""

    NONE = auto()
    FAREWELL = auto()  # it ends in good order
    RAISED = auto()  # it ends by an uncaught exception


_R, _C = RankState, LocalCause
LOCAL = Table(
    "local rank",
    "One incarnation of a rank, as its node's agent sees its process.",
    _R.STARTING,
    [
        ((_R.STARTING, _R.ALIVE), _C.HELLO, _R.ALIVE),
        ((_R.STARTING, _R.ALIVE), _C.ENDED_WELL, _R.LEFT),
        ((_R.STARTING, _R.ALIVE), _C.ENDED_BADLY, _R.DEAD),
        (_R.STARTING, _C.START_FAILED, _R.DEAD),
    ],
)


class Outlook(NamedTuple):
    """What the rank's process has said of a death in its job."""

    cover: Cover = Cover.UNKNOWN
    saves: bool = False  # it can write a last checkpoint
    kept: Kept = NOTHING_KEPT  # to which numbers of updates it could bring itself, when it last said what it holds


NOTHING_KNOWN = Outlook()


@dataclass(slots=True)
class RailsAnswer:
    """The rail orders that one rank has been sent and has answered."""

    order: int = 0  # the last rail order that its process has answered; 0: none
    trouble: str = ""  # why it cannot follow that order
    words: str = ""  # what its transport says about that order, if it can follow it
    told: int = 0  # the rail order that it was sent last, and when
    told_at: int | None = None


@dataclass(slots=True)
class Compiling:
    """Whether one rank compiles while a repair waits for it."""

    now: bool = False
    since: int | None = None
    said: bool = False


@dataclass(slots=True, eq=False)
class LocalRank:
    """The newest incarnation of one rank on this node."""

    rank: int
    incarnation: int
    epoch: int
    stage: Stage
    pid: int = 0
    state: RankState = RankState.STARTING
    exit_code: int = 0
    reason: str = ""
    updates: int = -1
    part: int = 0
    outlook: Outlook = NOTHING_KNOWN
    ok: bool = True
    acknowledged: bool = False  # the manager knows this incarnation
    refused: bool = False  # the manager does not take it, as things stand
    news: bool = True  # something changed since it was last reported
    step: int = -1
    phase: Phase = Phase.SETUP
    beat_age_ms: int = 0
    step_ms: int = 0
    work: int = 0
    compiling: Compiling = field(default_factory=Compiling)
    ending: bool = False
    failed: int = 0  # its place in the order in which ranks of this node failed, from 1; 0: it has not failed
    last_word: LastWord = LastWord.NONE
    next_incarnation: int = 0  # to be started here as soon as this one has gone; 0: none
    order_told_at: int | None = None
    rails: RailsAnswer = field(default_factory=RailsAnswer)

    @property
    def live(self) -> bool:
        """Whether its process lives."""
        return self.state in (RankState.STARTING, RankState.ALIVE)

    def move(self, cause: LocalCause) -> None:
        """Apply one row of the table."""
        self.state = LOCAL.after(self.state, cause)
        self.news = True

    @property
    def past(self) -> bool:
        """Whether it was ended because another process has its rank. A manager that forgot this would see a death."""
        return self.ending and not self.live

    def renumber(self, incarnation: int) -> bool:
        """Go on under this number, if it is newer. The manager asks for it when a dead process has the old number."""
        if incarnation <= self.incarnation:
            return False
        self.incarnation = incarnation
        self.acknowledged, self.refused, self.news = False, False, True
        return True

    def behind(self, order: Order) -> bool:
        """Whether its process has yet to follow this order, and has to be sent it."""
        if self.epoch != order.epoch:
            return self.epoch < order.epoch
        if self.stage is Stage.SETUP and order.stage is Stage.PARKED and order.epoch == self.epoch:
            return False  # it was started for this order
        return PROGRESS[self.stage] < PROGRESS[order.stage]

    def report(self) -> RankReport:
        """Return its report for the manager."""
        return RankReport(
            rank=self.rank,
            incarnation=self.incarnation,
            pid=self.pid,
            state=self.state,
            exit_code=self.exit_code,
            acknowledged=self.acknowledged,
            epoch=self.epoch,
            stage=self.stage,
            updates=self.updates,
            step=self.step,
            phase=self.phase,
            beat_age_ms=self.beat_age_ms,
            step_ms=self.step_ms,
            reason=self.reason,
            ok=self.ok,
            rail_order=self.rails.order,
            rail_trouble=self.rails.trouble,
            rail_words=self.rails.words,
            work=self.work,
            part=self.part,
            cover=self.outlook.cover,
            saves=self.outlook.saves,
            kept_from=self.outlook.kept.first,
            kept_to=self.outlook.kept.last,
        )
