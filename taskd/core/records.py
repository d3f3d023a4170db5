"""What is kept of every node and every rank, and the tables that their states follow.

Flat records, one per rank and one per node, changed in place by the machines that own the fields. They decide nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from signal import Signals

from taskd.core import limits
from taskd.core.messages import RankReport
from taskd.core.table import Table
from taskd.core.types import Cover, Phase, RankState
from taskd.core.words import LEFT_EARLY


class RankCause(Enum):
    """What moves a rank's state."""

    SEATED = auto()  # another incarnation takes the seat: ordered by the manager, or told by an agent
    STARTED = auto()
    JOINED = auto()
    DOUBTED = auto()
    DIED = auto()
    LEFT = auto()
    RETURNED = auto()  # it had been given up for its node's silence, and lives


_R, _RC = RankState, RankCause
RANK = Table(
    "rank",
    "What the manager knows of the newest incarnation of one rank.",
    _R.ABSENT,
    [
        ((_R.ABSENT, _R.STARTING, _R.ALIVE, _R.SUSPECT, _R.DEAD, _R.LEFT), _RC.SEATED, _R.ABSENT),
        ((_R.ABSENT, _R.SUSPECT), _RC.STARTED, _R.STARTING),
        ((_R.ABSENT, _R.STARTING), _RC.JOINED, _R.ALIVE),
        ((_R.ABSENT, _R.STARTING, _R.ALIVE), _RC.DOUBTED, _R.SUSPECT),
        ((_R.SUSPECT, _R.DEAD), _RC.RETURNED, _R.ALIVE),
        ((_R.ABSENT, _R.STARTING, _R.ALIVE, _R.SUSPECT), _RC.DIED, _R.DEAD),
        ((_R.ABSENT, _R.STARTING, _R.ALIVE, _R.SUSPECT), _RC.LEFT, _R.LEFT),
    ],
)


class NodeState(Enum):
    """What the manager knows of one node's agent."""

    UP = "up"
    SILENT = "silent"
    LOST = "lost"
    LEFT = "left"


class NodeCause(Enum):
    """What moves a node's state."""

    HEARD = auto()
    SILENT = auto()
    JUDGED = auto()
    GOODBYE = auto()


_N, _NC = NodeState, NodeCause
NODE = Table(
    "node",
    "What the manager knows of one node's agent.",
    _N.UP,
    [
        ((_N.UP, _N.SILENT, _N.LOST, _N.LEFT), _NC.HEARD, _N.UP),
        (_N.UP, _NC.SILENT, _N.SILENT),
        ((_N.UP, _N.SILENT), _NC.JUDGED, _N.LOST),
        ((_N.UP, _N.SILENT, _N.LOST), _NC.GOODBYE, _N.LEFT),
    ],
)

CRASHES = frozenset(-Signals[name] for name in ("SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV"))
"""Exit codes of a process that went by a fault of its own: nobody sent it these, as one may send SIGKILL or SIGTERM."""
LIVE = frozenset({RankState.STARTING, RankState.ALIVE, RankState.SUSPECT})


@dataclass(slots=True, eq=False)
class NodeRecord:
    """One node and the agent that speaks for it. From `heard_at` on, the fields belong to the detector."""

    name: str
    host: str = ""
    pid: int = 0
    life: int = 0
    sequence: int = -1
    state: NodeState = NodeState.UP
    spawns: bool = False
    slots: int = 0
    interval_ns: int = 0
    ranks: set[int] = field(default_factory=set)  # every rank whose seat is here, dead ones included
    former_ranks: set[int] = field(default_factory=set)  # whose seat was here and is not, or that was claimed in vain
    former_lives: deque[int] = field(default_factory=lambda: deque(maxlen=limits.MAX_KEPT_LIVES))
    heard_at: int = 0
    gap_mean_ns: float = 0.0
    gap_deviation_ns: float = 0.0
    check_at: int | None = None  # when the detector looks at it again; None: it does not
    connection_lost_at: int | None = None
    collective_error_at: int | None = None
    witness: str = ""  # who saw that, and what
    silent_since: int = 0  # of one that is silent, as far as the journal says
    order_told_at: int | None = None

    @property
    def starts(self) -> bool:
        """Whether a worker can be started here now."""
        return self.spawns and self.state in (NodeState.UP, NodeState.SILENT)

    @property
    def role(self) -> str:
        """What its agent is for, in words."""
        if not self.spawns:
            return "watches only"
        return f"room for {self.slots} {'worker' if self.slots == 1 else 'workers'}"


@dataclass(slots=True, eq=False)
class RankRecord:
    """The newest incarnation of one rank. `report` is what its agent said last of exactly this incarnation."""

    rank: int
    incarnation: int = 0
    node: NodeRecord | None = None
    state: RankState = RankState.ABSENT
    pid: int = 0
    report: RankReport | None = None
    last: RankReport | None = None  # what was said before `report` was put aside: for people only
    watched: bool = False  # a repair waits for it: every report of it is looked at
    exit_code: int = 0
    proved: bool = False  # its process is known to have ended: nothing can bring this incarnation back
    condemned: bool = False  # given up although its process lives: it is to be ended, whatever it reports
    reason: str = ""
    restarts: int = 0  # that count: one is forgotten with every while in which it lived
    restarted_at: int = 0
    rivals: set[str] = field(default_factory=set)  # nodes whose claim of this rank has been written down

    def forgive(self, now: int) -> None:
        """It has died: what it has lived since its last start pays for earlier deaths."""
        paid = (now - self.restarted_at) // limits.RESTART_FORGOTTEN_NS
        self.restarts = max(0, self.restarts - paid)

    def doubt_report(self) -> None:
        """Let its next report count as news, whatever it says."""
        self.last = self.report or self.last
        self.report = None

    @property
    def live(self) -> bool:
        """Its process is there, as far as anybody knows."""
        return self.state in LIVE

    @property
    def left(self) -> bool:
        """It counts as dead since it has left by itself inside a step."""
        return self.state is RankState.DEAD and self.reason.startswith(LEFT_EARLY)

    @property
    def done(self) -> bool:
        """It was killed, or its node was lost, when its work was done: nothing is lost with it. One that ends itself,
        by an exit code or a crash, says by that how it ended."""
        report = self.report or self.last
        finished = report is not None and report.phase is Phase.DONE
        return (
            self.state is RankState.DEAD
            and finished
            and ((self.exit_code < 0 and self.exit_code not in CRASHES) or not self.proved)
        )

    @property
    def steps_done(self) -> int:
        """How far its training had come, as far as anybody has told."""
        report = self.report or self.last
        return report.steps_done if report is not None else 0

    @property
    def cover(self) -> Cover:
        """What it knows of a death in this job."""
        return self.report.cover if self.report is not None else Cover.UNKNOWN

    @property
    def where(self) -> str:
        """The node's name, or a dash."""
        return self.node.name if self.node is not None else "-"
