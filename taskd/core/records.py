"""The manager's records of every node and every rank, and the transition tables of their states.

The records are flat, one per rank and one per node. The machines that own the fields change them in place. The records
decide nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto
from signal import Signals

from taskd.core import limits
from taskd.core.messages import RankReport
from taskd.core.table import Table
from taskd.core.types import Cover, GivenUp, Phase, RankState
from taskd.core.words import LEFT_EARLY, LEFT_UNSAID


class RankCause(Enum):
    """What changes a rank's state."""

    SEATED = auto()  # another incarnation takes the seat: ordered by the manager, or reported by an agent
    STARTED = auto()
    JOINED = auto()
    DOUBTED = auto()
    DIED = auto()
    LEFT = auto()
    RETURNED = auto()  # it was given up because its node was silent, but it lives


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
    """What changes a node's state."""

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
"""Exit codes of a process that crashed by itself. SIGKILL and SIGTERM are not here: another process may send them."""
LIVE = frozenset({RankState.STARTING, RankState.ALIVE, RankState.SUSPECT})


@dataclass(slots=True, eq=False)
class NodeRecord:
    """One node and the agent that speaks for it. The fields from `heard_at` on belong to the detector."""

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
    former_ranks: set[int] = field(default_factory=set)  # their seat was here once, or this node claimed them in vain
    former_lives: deque[int] = field(default_factory=lambda: deque(maxlen=limits.MAX_KEPT_LIVES))
    heard_at: int = 0
    gap_mean_ns: float = 0.0
    gap_deviation_ns: float = 0.0
    check_at: int | None = None  # when the detector looks at it again; None: it does not
    connection_lost_at: int | None = None
    collective_error_at: int | None = None
    witness: str = ""  # which rank or agent saw that error, and what it saw
    silent_since: int = 0  # of a silent node, as far as the journal says
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
class Restart:
    """The last restart of a rank, and what came of those before it."""

    at: int
    vain: int = 0  # how many of the last restarts, in a row, came to nothing
    resumed_steps: int = -1  # how far the job was when the rank resumed; -1: it has not resumed
    rests_until: int = 0  # the rank is not started again before
    told: bool = False  # whether people were told of this rest
    counts: bool = False  # it counts against the limit of restarts
    alone: bool = False  # the others kept their processes
    after_refusal: bool = False  # the process before had refused to go on

    def died(self, now: int, steps: int) -> None:
        """The rank has died: if its last restarts came to nothing, it is to rest before the next one."""
        done = self.resumed_steps >= 0 and steps - self.resumed_steps >= limits.RESTART_STEPS
        self.vain = 0 if done or now - self.at >= limits.RESTART_SOON_NS else self.vain + 1
        self.rests_until, self.told = now, False
        if self.vain >= limits.RESTARTS_AT_ONCE:
            pause_ns = limits.RESTART_PAUSE_NS << min(self.vain - limits.RESTARTS_AT_ONCE, 32)
            self.rests_until += min(pause_ns, limits.RESTART_PAUSE_MAX_NS)


@dataclass(slots=True, eq=False)
class RankRecord:
    """The newest incarnation of one rank. `report` is the last report of its agent about exactly this incarnation."""

    rank: int
    incarnation: int = 0
    node: NodeRecord | None = None
    state: RankState = RankState.ABSENT
    pid: int = 0
    report: RankReport | None = None
    last: RankReport | None = None  # the report from before `report` was put aside: for people only
    watched: bool = False  # a repair waits for it: every report of it is examined
    exit_code: int = 0
    proved: bool = False  # its process is known to have ended: nothing can bring this incarnation back
    given_up: GivenUp | None = None  # although its process lives: it is to be ended, whatever it reports
    reason: str = ""
    restarts: int = 0  # those that count: one is forgotten for every RESTART_FORGOTTEN_NS that it lived
    restart: Restart | None = None  # the last one
    rivals: set[str] = field(default_factory=set)  # nodes whose claim of this rank has been written down

    def died(self, now: int, steps: int) -> bool:
        """It has died: forget restarts that are long ago, and see what came of the last one. `steps`: how far the job
        is. Return whether the last one never began, so that nobody counts it."""
        restart = self.restart
        if restart is None:
            return False
        self.restarts = max(0, self.restarts - (now - restart.at) // limits.RESTART_FORGOTTEN_NS)
        unbegun = self.report is None and self.last is None  # its node was lost before it could report the start
        if not unbegun:
            restart.died(now, steps)
        # One death costs one restart, however many tries its repair takes. Tries have limits of their own.
        failed_try = restart.alone and restart.resumed_steps < 0
        refused = self.given_up is GivenUp.REFUSED and not restart.after_refusal
        if not restart.counts or not (unbegun or failed_try or refused):
            return False
        self.restarts, restart.counts = max(0, self.restarts - 1), False
        return unbegun

    def doubt_report(self) -> None:
        """Make its next report count as news, whatever it says."""
        self.last = self.report or self.last
        self.report = None

    @property
    def live(self) -> bool:
        """Whether its process lives, as far as is known."""
        return self.state in LIVE

    @property
    def left(self) -> bool:
        """Whether it counts as dead because it ended with exit code 0 inside a step."""
        return self.state is RankState.DEAD and self.reason.startswith(LEFT_EARLY)

    @property
    def asked(self) -> bool:
        """Whether it counts as dead because an operator wants it replaced. That is no fault of the rank."""
        return self.given_up is GivenUp.ASKED

    @property
    def left_unsaid(self) -> bool:
        """Whether it ended with exit code 0 outside of a step, and has said so to no rank that may wait for it."""
        report = self.report or self.last
        return self.state is RankState.LEFT and report is not None and report.reason == LEFT_UNSAID

    @property
    def done(self) -> bool:
        """Whether it was killed, or its node was lost, after its work was done: nothing is lost with it. A process that
        ends by an exit code or a crash is not meant: this shows by itself how it ended."""
        report = self.report or self.last
        finished = report is not None and report.phase is Phase.DONE
        return (
            self.state is RankState.DEAD
            and finished
            and ((self.exit_code < 0 and self.exit_code not in CRASHES) or not self.proved)
        )

    @property
    def steps_done(self) -> int:
        """How far its training had come, as far as was reported."""
        report = self.report or self.last
        return report.steps_done if report is not None else 0

    @property
    def cover(self) -> Cover:
        """What this rank knows about the effect of a death in this job."""
        return self.report.cover if self.report is not None else Cover.UNKNOWN

    @property
    def saves(self) -> bool:
        """Whether this rank lives and can write the last checkpoint."""
        return self.live and self.report is not None and self.report.saves

    @property
    def part(self) -> int:
        """The part of the model that it holds, or held when it was last heard of. 0: the whole, or not known."""
        report = self.report or self.last
        return report.part if report is not None else 0

    @property
    def where(self) -> str:
        """The node's name, or a dash."""
        return self.node.name if self.node is not None else "-"
