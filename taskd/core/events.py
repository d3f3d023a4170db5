"""The events of the core's state machines: messages with their senders, and what a shell saw itself.

A shell turns everything that happens (a datagram, an exit notice, a deadline) into one of these and hands it to
`step`. Events are facts from outside: no machine may raise on them, whatever they contain.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core.messages import (
    FromAgent,
    FromWorker,
    Order,
    Place,
    RailReport,
    Still,
    Stop,
    ToAgent,
    Unmended,
    WorkerWelcome,
)
from taskd.core.types import (
    NOTHING_KEPT,
    DeviceKind,
    ErrandFinding,
    ErrandKind,
    HangFinding,
    Harm,
    Kept,
    PauseFinding,
    Phase,
    ProofFinding,
    RailFinding,
    RankState,
    Stage,
)


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline is due, or no other event came for a while."""


# ---- to the manager -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sender:
    """The sender of a message: a node's agent, the life of that agent, and the number of the message in that life."""

    node: str
    life: int  # random per agent process, so that a restarted agent is another sender
    sequence: int  # grows by one per message; a message that is not newer than the last one is dropped and counted


@dataclass(frozen=True, slots=True)
class Said:
    """An agent's message arrived."""

    sender: Sender
    message: FromAgent


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """The connection of a node's agent broke: a witness, not a verdict."""

    node: str


@dataclass(frozen=True, slots=True)
class Restarted:
    """The manager's process came back and has replayed its journal: all that it knew is older than `now`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the manager's own detector found about a node. The manager writes it to the journal, in place of the many
    quiet reports and ticks that led to it. Only a replay feeds it back."""

    node: str  # empty: about the manager itself, which slept for `age_ns`
    state: RankState  # SUSPECT or DEAD: the new state of its ranks; ALIVE if `node` is empty
    age_ns: int  # how long nothing had been heard
    reason: str


@dataclass(frozen=True, slots=True)
class Reached:
    """How many steps were done when all ranks had to start over, or when that was decided. The manager knows it from
    quiet beats, which are not in the journal. So it writes this before the event that led to it. Only a replay feeds it
    back."""

    steps: int


@dataclass(frozen=True, slots=True)
class RailVerdict:
    """What the manager found about a rail: like a Verdict, in place of the many reports that led to it."""

    finding: RailFinding
    rail: str
    nodes: tuple[str, ...]  # the nodes that own the rail; a finding about lines names one
    peers: tuple[str, ...] = ()  # only for findings about lines
    reason: str = ""
    borrowers: tuple[str, ...] = ()  # rails that carry its traffic
    borrowed: int = 0  # at its return: bytes that they have carried since it was lost
    hedged: int = 0
    retransmitted: int = 0


@dataclass(frozen=True, slots=True)
class RailWish:
    """An operator wants this rail of these nodes out of use, or back. The manager has checked that it can be done."""

    rail: str
    nodes: tuple[str, ...]
    out: bool


@dataclass(frozen=True, slots=True)
class PauseWish:
    """An operator wants the job to pause, or to go on. The manager has checked that it can be done."""

    request: str  # the operator's name for this wish: a repeated one is not followed twice
    by: str  # who wants it
    step: int = -1  # the step before which to stand; -1: the next one that no rank has begun
    lease_ns: int = 0  # how long to stand if nobody renews it; 0: go on


@dataclass(frozen=True, slots=True)
class PauseVerdict:
    """What the manager found about a pause: like a Verdict, in place of the answers of ranks and nodes."""

    finding: PauseFinding
    step: int  # for AGREED and STANDS: the step; for FORGOTTEN: the number of the order
    nodes: tuple[str, ...]  # only for UNTOLD
    reason: str


@dataclass(frozen=True, slots=True)
class ErrandWish:
    """An operator wants something done between two steps. The manager has checked that it can be done."""

    request: str
    by: str
    kind: ErrandKind
    ranks: tuple[int, ...]  # the ranks to be replaced
    node: str  # for VACATE: the node; for SAVE: the node whose launcher was told to end, if one was; else empty
    lease_ns: int  # how long the other ranks may stand for it


@dataclass(frozen=True, slots=True)
class ErrandVerdict:
    """What the manager found about an errand: like a Verdict, in place of what led to it."""

    finding: ErrandFinding
    reason: str


@dataclass(frozen=True, slots=True)
class ProofVerdict:
    """What the manager found in the proofs of the ranks: like a Verdict, in place of all of them."""

    finding: ProofFinding
    updates: int
    layout: int
    total: int  # units of that layout
    units: tuple[int, ...]  # for BASE and EXCEPTED: not to be compared; for DIFFERS: the units that differ
    ranks: tuple[int, ...]  # for DIFFERS: the ranks that are wrong, or all ranks
    named: bool  # the other ranks are more, and agree, so `ranks` are the wrong ones
    taken: bool  # some of these ranks took the units from others in a repair
    harmless: bool  # the units change no weight by themselves: a script may set them on one rank alone
    item: str  # the first of those units; for BASE and EXCEPTED: the first that is not harmless; empty: there is none
    reason: str


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """The job stands still, or goes on: like a Verdict, in place of the nodes' reports of ranks without progress."""

    finding: HangFinding
    age_ns: int  # how long it has stood still by now
    ranks: tuple[int, ...]  # the ranks that others wait for; empty: there are none, or they are not known
    reason: str


ManagerEvent = (
    Said
    | HangVerdict
    | RailVerdict
    | RailWish
    | PauseVerdict
    | PauseWish
    | ErrandVerdict
    | ErrandWish
    | ProofVerdict
    | ConnectionLost
    | Reached
    | Restarted
    | Verdict
    | Tick
)


# ---- to the agent ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heard:
    """The manager's message arrived."""

    message: ToAgent


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection to the manager is there (again)."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection to the manager broke."""


@dataclass(frozen=True, slots=True)
class WorkerSaid:
    """A worker of this node said something."""

    message: FromWorker


@dataclass(frozen=True, slots=True)
class Started:
    """A worker's process was started by this agent, as ordered."""

    rank: int
    incarnation: int
    pid: int


@dataclass(frozen=True, slots=True)
class StartFailed:
    """A worker's process could not be started."""

    rank: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A worker's process is ending or has ended; `exit_code` is negative for a signal, 0 for good order."""

    rank: int
    incarnation: int
    exit_code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a rank's slot of its beat page."""

    rank: int
    incarnation: int
    epoch: int
    step: int
    phase: Phase
    beat_age_ms: int
    step_ms: int
    work: int = 0
    compiling: bool = False
    still: Still | None = None  # it makes no progress
    places: tuple[Place, ...] = ()  # where it is in its groups, if it makes no progress


@dataclass(frozen=True, slots=True)
class Readings:
    """One look at all pages and counters of the node."""

    readings: tuple[Reading, ...]
    rails: tuple[RailReport, ...] = ()  # every line of the node; empty: they were not looked at


@dataclass(frozen=True, slots=True)
class DeviceSeen:
    """A device of this node has reported an event just now."""

    device: int  # its number on the node; -1: not known
    uuid: str
    kind: DeviceKind
    code: int
    text: str
    harm: Harm
    pids: tuple[int, ...] = ()  # processes that use it, as its driver says
    holders: tuple[int, ...] = ()  # processes of this node's ranks that have some device of this kind open


AgentEvent = Heard | Connected | Disconnected | WorkerSaid | Started | StartFailed | Gone | Readings | DeviceSeen | Tick


# ---- to the worker --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """The worker's shell has done what an effect asked for and is at `stage` of `epoch`, or says why it could not.

    It comes once more, with stage RUNNING and more `updates`, when the first step after a repair is done.
    """

    epoch: int
    stage: Stage
    updates: int
    ok: bool
    reason: str
    part: int = 0
    kept: Kept = NOTHING_KEPT


@dataclass(frozen=True, slots=True)
class Raised:
    """An error has left the step of this worker, after this many `updates`, and the worker could do the step again. An
    empty reason means that it no longer waits for that."""

    updates: int
    reason: str


WorkerEvent = Order | Stop | Unmended | WorkerWelcome | Done | Raised | Tick
