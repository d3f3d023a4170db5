"""The effects: what the state machines of the core want done. A shell carries them out in order, and does nothing else.

The manager's effects go into the journal as well: a replay of the events must print the same list again.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core.messages import FromAgent, Order, StageReached, ToAgent, ToWorker, WorkerWelcome
from taskd.core.types import StopKind

# ---- of the manager -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tell:
    """Send this to a node's agent: to its current life, or (for a refusal) only to this `life`."""

    node: str
    message: ToAgent
    life: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """Record what happened, for people: `taskd events`. `kind` is one word, `text` a sentence."""

    kind: str
    text: str
    rank: int = -1
    node: str = ""
    epoch: int = 0
    incident: int = 0


@dataclass(frozen=True, slots=True)
class EndJob:
    """The job is over (all ranks left, or the ladder ended): the manager may stop once its agents know."""

    exit_code: int
    reason: str
    kind: StopKind = StopKind.OVER


ManagerEffect = Tell | Note | EndJob


# ---- of the agent ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send this to the manager."""

    message: FromAgent


@dataclass(frozen=True, slots=True)
class Relay:
    """Send this to these ranks of the node."""

    ranks: tuple[int, ...]
    message: ToWorker


@dataclass(frozen=True, slots=True)
class Refuse:
    """Send this to the process that asked, and to no other: another process may rightly hold the rank it claims."""

    pid: int
    message: WorkerWelcome


@dataclass(frozen=True, slots=True)
class Spawn:
    """Start a worker for this seat. A `newcomer` joins survivors: it runs its set-up alone and then parks. Any other
    worker starts as at the first start of the job, together with all ranks."""

    rank: int
    incarnation: int
    epoch: int
    newcomer: bool


@dataclass(frozen=True, slots=True)
class End:
    """End a worker's process: its seat has gone to another incarnation, or the job stops."""

    rank: int
    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class Leave:
    """The agent's work is done: end with this exit code."""

    exit_code: int
    reason: str
    kind: StopKind = StopKind.OVER  # if it was told to stop: why


@dataclass(frozen=True, slots=True)
class Warn:
    """One sentence for this node's log."""

    text: str


AgentEffect = Send | Relay | Refuse | Spawn | End | Leave | Warn


# ---- of the worker --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reach:
    """Send this to the agent."""

    message: StageReached


@dataclass(frozen=True, slots=True)
class Park:
    """Give up the step: drain the guards, then wait. The answer is Done(PARKED) of this epoch with the updates held.

    A newcomer in its set-up goes on with its set-up and then parks. A Done that is not ok means, for a survivor, that
    its state is of no use (it stopped inside its update), and for a newcomer that its set-up failed.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class Rebuild:
    """Make the communicators of this epoch."""

    order: Order


@dataclass(frozen=True, slots=True)
class Restore:
    """Bring the state to the agreed updates."""

    order: Order


@dataclass(frozen=True, slots=True)
class Save:
    """Write the last checkpoint if the order names this rank as one of its savers."""

    order: Order


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on with the step that follows the agreed updates."""

    epoch: int
    updates: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Raise the error of this epoch in the script: no repair will come."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Quit:
    """End this process: its seat has gone to another process, or the job stops."""

    exit_code: int
    reason: str


WorkerEffect = Reach | Park | Rebuild | Restore | Save | Resume | LetGo | Quit
