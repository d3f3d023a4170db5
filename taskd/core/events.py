"""What the machines of the core are told besides messages: who said something, and what a shell saw itself.

A shell turns everything that happens (a datagram, an exit notice, a deadline) into one of these and hands it to
`step`. Events are facts from outside: whatever they hold, no machine may raise on them.
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
from taskd.core.types import HangFinding, Phase, ProofFinding, RailFinding, RankState, Stage


@dataclass(frozen=True, slots=True)
class Tick:
    """A deadline is due, or nothing else happened for a while."""


# ---- to the manager -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a message: a node's agent, which life of it, and the number of the message in that life."""

    node: str
    life: int  # random per agent process, so that a restarted agent is another sender
    sequence: int  # grows by one per message; what is not newer than the last one heard is dropped and counted


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
    """The manager's process came back and has replayed its journal: whatever it knew is older than `now`."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the manager's own detector found about a node. The manager makes it and hands it out for the journal, in
    place of the many quiet reports and ticks that led to it; only a replay feeds it back."""

    node: str  # empty: about the manager itself, which slept for `age_ns`
    state: RankState  # SUSPECT or DEAD: what its ranks are to be taken for
    age_ns: int  # how long nothing had been heard
    reason: str


@dataclass(frozen=True, slots=True)
class Reached:
    """How many steps were done when all ranks had to start over. Quiet beats have said so, of which the journal holds
    none: the manager hands this out in front of the event that made them start over, and only a replay feeds it
    back."""

    steps: int


@dataclass(frozen=True, slots=True)
class RailVerdict:
    """What the manager found about a rail: like a Verdict, in place of the many reports that led to it."""

    finding: RailFinding
    rail: str
    nodes: tuple[str, ...]  # whose rail it is; of lines: one
    peers: tuple[str, ...] = ()  # of lines
    reason: str = ""
    borrowers: tuple[str, ...] = ()  # rails that carry for it
    borrowed: int = 0  # bytes that they have carried since it was lost, at its return
    hedged: int = 0
    retransmitted: int = 0


@dataclass(frozen=True, slots=True)
class RailWish:
    """An operator wants this rail of these nodes out of use, or back. The manager has looked that it can be done."""

    rail: str
    nodes: tuple[str, ...]
    out: bool


@dataclass(frozen=True, slots=True)
class ProofVerdict:
    """What the manager found in the proofs of the ranks: like a Verdict, in place of all of them."""

    finding: ProofFinding
    updates: int
    layout: int
    total: int  # units of that layout
    units: tuple[int, ...]  # of BASE and EXCEPTED: not to be compared; of DIFFERS: those that differ
    ranks: tuple[int, ...]  # of DIFFERS: who is wrong, or everybody
    named: bool  # the others are more, and agree
    harmless: bool  # nothing that changes a weight by itself: a script may set it on one rank alone
    item: str  # the first of those units
    reason: str


@dataclass(frozen=True, slots=True)
class HangVerdict:
    """The job stands still, or goes on: like a Verdict, in place of what nodes have told of ranks without progress."""

    finding: HangFinding
    age_ns: int  # how long it has stood still by now
    ranks: tuple[int, ...]  # who is waited for; none: nobody, or nobody knows
    reason: str


ManagerEvent = (
    Said | HangVerdict | RailVerdict | RailWish | ProofVerdict | ConnectionLost | Reached | Restarted | Verdict | Tick
)


# ---- to the agent ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Heard:
    """The manager's message arrived."""

    message: ToAgent


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection to the manager is (again) there."""


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
    places: tuple[Place, ...] = ()  # where it is in its groups, if so


@dataclass(frozen=True, slots=True)
class Readings:
    """One look at all pages and counters of the node."""

    readings: tuple[Reading, ...]
    rails: tuple[RailReport, ...] = ()  # every line of the node; empty: they were not looked at


AgentEvent = Heard | Connected | Disconnected | WorkerSaid | Started | StartFailed | Gone | Readings | Tick


# ---- to the worker --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """The worker's shell has done what an effect asked for and stands at `stage` of `epoch`; or says why it could not.

    Said once more with stage RUNNING and more `updates` when the first step after a repair is made.
    """

    epoch: int
    stage: Stage
    updates: int
    ok: bool
    reason: str
    part: int = 0


@dataclass(frozen=True, slots=True)
class Raised:
    """An error has left the step of this worker behind so many `updates`, and it could do that again. Without a reason:
    it waits for that no longer."""

    updates: int
    reason: str


WorkerEvent = Order | Stop | Unmended | WorkerWelcome | Done | Raised | Tick
