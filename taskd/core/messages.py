"""The messages between processes: one frozen dataclass per message, with the bounds of every field.

The core consumes and produces these objects, and taskd.wire turns them into bytes and back, so each message has one
definition. Reports and orders are *levels, not edges*. A report says what the state is, an order what the state shall
be. Both are repeated until they are followed, so a lost, duplicated or reordered message has no effect for longer than
one repetition. Messages carry ages instead of clock readings: the clocks of two hosts are never compared. Nothing is
ever unpickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from taskd.core import limits
from taskd.core.fields import (
    AtMost,
    Between,
    Count,
    Digests,
    Epoch,
    ExitCode,
    Incarnation,
    Name,
    Part,
    Pid,
    RankId,
    Signed,
    SlotDigests,
    Small,
    Step,
    StoreItem,
    Text,
)
from taskd.core.pause.messages import PauseAnswer as PauseAnswer
from taskd.core.pause.messages import PauseAnswers as PauseAnswers
from taskd.core.pause.messages import PauseOrder as PauseOrder
from taskd.core.rails.messages import CountersShown as CountersShown
from taskd.core.rails.messages import RailOrder as RailOrder
from taskd.core.rails.messages import RailReport as RailReport
from taskd.core.rails.messages import RailsFollowed as RailsFollowed
from taskd.core.types import (
    PROGRESS,
    Cover,
    DeviceKind,
    Doing,
    EvidenceKind,
    Harm,
    Phase,
    RankState,
    Stage,
    StopKind,
    StoreOperation,
    StoreStatus,
)

# ---- worker and agent -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerHello:  # large: as RankReport
    """A training process introduces itself to its node's agent. The descriptor of its beat page travels with it."""

    job: Name
    rank: RankId
    world_size: Annotated[int, Between(1, limits.MAX_RANKS)]
    local_rank: Small
    pid: Pid
    incarnation: Incarnation  # 0: none was given, the agent picks the next one
    framework: Name
    epoch: Epoch
    stage: Stage
    key: Annotated[bytes, AtMost(limits.KEY_BYTES)]  # the job's key if this worker learned it, else empty
    updates: Step = -1  # the updates that it held when it reached that stage
    part: Part = 0
    cover: Cover = Cover.UNKNOWN
    device: Name = ""  # the number or the id of the device at its place; empty: none
    saves: bool = False
    kept_from: Step = -1
    kept_to: Step = -1


@dataclass(frozen=True, slots=True)
class WorkerWelcome:
    """The agent's answer. It is sent again when `acknowledged` changes: only the manager can make it true."""

    accepted: bool
    acknowledged: bool
    incarnation: Incarnation
    epoch: Epoch
    reason: Text


@dataclass(frozen=True, slots=True)
class StageReached:
    """A worker has followed an order as far as `stage`, or says why it cannot."""

    rank: RankId
    incarnation: Incarnation
    epoch: Epoch
    stage: Stage
    updates: Step  # optimizer updates that its parameters hold; -1: it holds none (a newcomer)
    ok: bool
    reason: Text
    part: Part = 0
    kept_from: Step = -1  # it can bring its part to these numbers of updates by itself (types.Kept); -1: to none
    kept_to: Step = -1


@dataclass(frozen=True, slots=True)
class Covered:
    """What this worker knows, after a step, about the effect of a death in its job. If a death would make all ranks
    start over, the worker has reported why."""

    rank: RankId
    incarnation: Incarnation
    cover: Cover
    saves: bool = False  # it holds a state, and its script has a function that writes the last checkpoint
    part: Part = 0


@dataclass(frozen=True, slots=True)
class StackAsked:
    """The agent asks a worker that makes no progress where in its script it is. A worker that takes this message shows
    by that already that its Python threads run."""

    rank: RankId


@dataclass(frozen=True, slots=True)
class StackTold:
    """The worker's answer to StackAsked: where in its script it is."""

    rank: RankId
    incarnation: Incarnation
    words: Text


@dataclass(frozen=True, slots=True)
class Evidence:
    """A sign of a fault, and the rank or agent that saw it."""

    kind: EvidenceKind
    rank: Annotated[int, Between(-1, limits.MAX_RANKS - 1)]  # the rank it speaks against; -1: none in particular
    incarnation: Incarnation
    witness: Annotated[int, Between(-1, limits.MAX_RANKS - 1)]  # the rank that saw it; -1: the agent
    exit_code: ExitCode
    reason: Text
    operation: Text = ""  # the operation that is late
    waited_ms: Count = 0  # how long the witness has waited for it


@dataclass(frozen=True, slots=True)
class WorkerLeaving:
    """A worker ends in good order."""

    rank: RankId
    incarnation: Incarnation
    reason: Text


@dataclass(frozen=True, slots=True)
class Proof:
    """Digests of a rank's state after an update, to be compared with those of all other ranks. They cover a run of its
    units, or all of them. A proof is never awaited and never sent again: another one comes."""

    rank: RankId
    incarnation: Incarnation
    epoch: Epoch
    updates: Step  # the updates that it holds
    every: Count  # after this many updates the whole state has been compared once; 0: not known yet
    layout: Count  # differs between ranks that hold other things; its upper half: that hold other things that count
    total: Annotated[int, Between(0, limits.PROOF_UNITS)]
    harmless: Annotated[int, Between(0, limits.PROOF_UNITS)]  # this many first units change no weight by themselves
    taken: bool  # the rank got its state from another rank in a repair
    first: Annotated[int, Between(0, limits.PROOF_UNITS)]
    digests: Annotated[bytes, AtMost(limits.PROOF_UNITS * limits.DIGEST_WORD)]  # 0: this unit's cannot be computed
    names: Annotated[str, AtMost(limits.PROOF_NAMES)]  # of these units, one per line; only the first rank gives them
    missing: Text  # what is not compared, and why
    part: Part = 0  # the proof is compared with those of the same part

    @property
    def what_counts(self) -> int:
        """A number that is the same on ranks that list the same things, except such as change no weight."""
        return self.layout >> limits.PROOF_HALF


# ---- agent and manager ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentHello:
    """A node's agent introduces itself, and does so again whenever the manager may have forgotten it."""

    job: Name
    node: Name
    host: Name
    pid: Pid
    world_size: Annotated[int, Between(0, limits.MAX_RANKS)]  # 0: no worker has told it yet
    spawns: bool  # True: it can start workers (the launcher); False: it only watches them (a side process)
    slots: Annotated[int, Between(0, limits.MAX_RANKS_PER_NODE)]  # how many workers it has room for
    interval_ms: Annotated[int, Between(1, 60_000)]  # how often it intends to report


@dataclass(frozen=True, slots=True)
class RankReport:  # large: a message has as many fields as it tells
    """The state of one rank, as its node's agent sees it."""

    rank: RankId
    incarnation: Incarnation
    pid: Pid
    state: RankState  # STARTING, ALIVE, DEAD or LEFT: an agent never says SUSPECT
    exit_code: ExitCode  # of a DEAD one: negative means the signal
    acknowledged: bool  # False until the manager has confirmed this incarnation
    epoch: Epoch
    stage: Stage
    updates: Step
    step: Step
    phase: Phase
    beat_age_ms: Annotated[int, Between(0, 2**31)]
    step_ms: Annotated[int, Between(0, 2**31)]  # duration of its last full step; 0: none yet
    reason: Text  # of a refusal, a death, or an end that is not an ordinary one; empty otherwise
    ok: bool = True  # False: `stage` could not be done; with PARKED: it waits, but the state it holds is of no use
    rail_order: Count = 0  # the number of the last rail order that it has answered; 0: none
    rail_trouble: Text = ""  # why it cannot follow that order
    rail_words: Text = ""  # what its transport says about that order, if it can follow it
    work: Count = 0  # grows while its process uses the processor or moves bytes; 0: not measured
    part: Part = 0
    cover: Cover = Cover.UNKNOWN
    saves: bool = False  # it can write the last checkpoint
    kept_from: Step = -1  # it can bring its part to these numbers of updates by itself (types.Kept); -1: to none
    kept_to: Step = -1

    @property
    def steps_done(self) -> int:
        """How far its training had come, as far as was reported."""
        ended = self.phase in (Phase.APPLIED, Phase.BETWEEN, Phase.DONE)
        return max(self.step + ended, self.updates, 0)


@dataclass(frozen=True, slots=True)
class Report:
    """One node's beat: what changed since the last beat, or everything when `full`. The rails by peer node are too many
    for one beat: those with news come at once, the others in turn."""

    full: bool
    term: Count  # the manager's term that the agent follows; 0: none yet
    ranks: Annotated[tuple[RankReport, ...], AtMost(limits.MAX_RANKS_PER_NODE)]
    epoch: Epoch = 0  # the newest epoch that the agent knows, for a manager that has lost its journal
    rails: Annotated[tuple[RailReport, ...], AtMost(limits.MAX_RAIL_REPORTS)] = ()
    rail_order: Count = 0  # the number of the rail order that the agent holds; 0: none


@dataclass(frozen=True, slots=True)
class Proofs:
    """The proofs that the ranks of one node have sent since the last beat."""

    proofs: Annotated[tuple[Proof, ...], AtMost(limits.MAX_PROOFS)]


@dataclass(frozen=True, slots=True)
class Still:
    """A rank that makes no progress just now, possibly for a good reason."""

    rank: RankId
    incarnation: Incarnation
    mark: Count  # of its last progress: another number means that it has made progress since
    still_ms: Count  # no step, no phase and no operation has begun for this long
    doing: Doing
    doing_ms: Count  # for how long it was seen doing this
    words: Text  # where it is, in words that follow those for `doing`; empty: nothing is known


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank that makes no progress is in one of its process groups."""

    rank: RankId
    group: Annotated[int, Between(0, 2**32 - 1)]  # the group's number in the beat page
    kind: Annotated[int, Between(0, 2**16 - 1)]  # the kind of the operation, by c10d's number
    entered: Count  # the operation that it entered last
    left: Count  # the operation that it left last; for messages: how many it has left


@dataclass(frozen=True, slots=True)
class Stillness:
    """The ranks of one node that make no progress. All its other ranks do. Repeated while there are such ranks."""

    ranks: Annotated[tuple[Still, ...], AtMost(limits.MAX_RANKS_PER_NODE)]
    places: Annotated[tuple[Place, ...], AtMost(limits.MAX_RANKS_PER_NODE * limits.MAX_PLACES)]


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """An event that a device of the node has reported, once or several times."""

    device: Annotated[int, Between(-1, limits.MAX_DEVICES - 1)]  # its number on the node; -1: not known
    uuid: Name
    kind: DeviceKind
    code: Count  # the number of the error in its kind; 0: it has none
    text: Text  # what was reported, in words that follow `reported`
    harm: Harm
    times: Count  # how often it was reported to this agent
    age_ms: Annotated[int, Between(0, 2**62)]  # since the last time


@dataclass(frozen=True, slots=True)
class DeviceUser:
    """A rank that uses the device of an event, as far as is known."""

    event: Annotated[int, Between(0, limits.MAX_DEVICE_EVENTS - 1)]  # its place in the report
    rank: RankId


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """All events of one node's devices that its agent remembers. Repeated while there are some."""

    events: Annotated[tuple[DeviceEvent, ...], AtMost(limits.MAX_DEVICE_EVENTS)]
    users: Annotated[tuple[DeviceUser, ...], AtMost(limits.MAX_DEVICE_EVENTS * limits.MAX_RANKS_PER_NODE)] = ()

    def ranks_of(self, place: int) -> tuple[int, ...]:
        """Return the ranks that use the device of the event at this place of the report."""
        return tuple(user.rank for user in self.users if user.event == place)


@dataclass(frozen=True, slots=True)
class Goodbye:
    """An agent ends in good order: its workers have ended, or its launcher was told to stop."""

    reason: Text


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The manager knows this incarnation of this rank on this node."""

    rank: RankId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Refused:
    """The manager does not take this incarnation. `next_incarnation` 0: never. Else: come back under that number."""

    rank: RankId
    incarnation: Incarnation
    next_incarnation: Incarnation
    reason: Text


@dataclass(frozen=True, slots=True)
class Answer:
    """The manager's answer to one agent: known ranks, refused ranks, and whether it wants to hear everything again."""

    term: Count
    accepted: bool  # whether the agent itself is accepted
    reason: Text
    want_hello: bool
    epoch: Epoch
    confirmed: Annotated[tuple[Confirmed, ...], AtMost(limits.MAX_RANKS_PER_NODE)]
    refused: Annotated[tuple[Refused, ...], AtMost(limits.MAX_RANKS_PER_NODE)]


@dataclass(frozen=True, slots=True)
class Seat:
    """Which incarnation of a rank belongs to an epoch, and on which node it sits."""

    rank: RankId
    incarnation: Incarnation
    node: Name


@dataclass(frozen=True, slots=True)
class Fetch:
    """`rank` takes parameters and optimizer state from `source`, which holds the agreed updates."""

    rank: RankId
    source: RankId


@dataclass(frozen=True, slots=True)
class Order:
    """The state that the job shall have. Repeated until followed. An order of an older epoch or term is void.

    A node gets only the seats and fetches of its own ranks (core/parts.py).
    Stage PARKED: give up the step and wait; each node starts those of its seats that do not run yet.
    Stage REBUILT: make the communicators of this epoch. Stage RESTORED: bring your state to `updates`, by `fetches`.
    Stage RUNNING: go on from there (after a repair), or only: this is the membership (no repair under way).
    Stage SAVED: no repair follows in this epoch. The `savers` write the last checkpoint after `updates`.
    """

    term: Count
    epoch: Epoch
    stage: Stage
    incident: Count  # 0: no incident, a plain membership
    updates: Step  # agreed number of optimizer updates; -1: not agreed yet, or the job starts from nothing
    seats: Annotated[tuple[Seat, ...], AtMost(limits.MAX_RANKS)]  # newcomers of this epoch, and ranks that changed
    fetches: Annotated[tuple[Fetch, ...], AtMost(limits.MAX_RANKS)]
    reason: Text
    savers: Annotated[tuple[RankId, ...], AtMost(limits.MAX_RANKS)] = ()

    @property
    def fresh(self) -> bool:
        """Whether every rank starts over, from nothing."""
        return self.stage is Stage.RUNNING and self.updates < 0 and bool(self.seats)

    def precedes(self, other: Order) -> bool:
        """Whether it is an earlier stage of the same epoch, in the same term."""
        same = (self.epoch, self.term) == (other.epoch, other.term)
        return same and PROGRESS[self.stage] < PROGRESS[other.stage]


@dataclass(frozen=True, slots=True)
class Stop:
    """The job ends, or one node is no longer needed: the agent ends its workers and leaves with this exit code."""

    term: Count
    exit_code: ExitCode
    reason: Text
    kind: StopKind = StopKind.OVER


@dataclass(frozen=True, slots=True)
class Unmended:
    """What has failed in this epoch is not going to be repaired. A rank that holds such an error may raise it in the
    script."""

    term: Count
    epoch: Epoch
    reason: Text


@dataclass(frozen=True, slots=True)
class RanksEnded:
    """The processes that these ranks had in this epoch have ended with exit code 0, and have said farewell to nobody.
    Other ranks need not wait for them any longer. It is sent once: a rank that does not hear it waits for a while."""

    term: Count
    epoch: Epoch
    ranks: Annotated[tuple[RankId, ...], AtMost(limits.MAX_RANKS)]


# ---- the job's store (between an agent's relay and the manager's values; the machines of the core never see it) ----


@dataclass(frozen=True, slots=True)
class StoreAsk:
    """One operation on the job's store. Repeated until answered. An operation that was applied already is answered, not
    applied again."""

    number: Count  # grows by one per operation of this relay's life
    settled: Count  # operations that change something, below this number, are answered and never repeated
    operation: StoreOperation
    amount: Signed  # ADD: what to add; FORGET: which number; GET and WAIT: any value but 0 means do not wait
    items: Annotated[tuple[StoreItem, ...], AtMost(limits.MAX_STORE_ITEMS)]


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """How an operation ended."""

    number: Count
    status: StoreStatus
    amount: Signed  # ADD: the sum; COUNT: how many; CHECK and DELETE: 1 for yes
    items: Annotated[tuple[StoreItem, ...], AtMost(limits.MAX_STORE_ITEMS)]


# ---- copies of records (between an agent and the manager's memory; the machines of the core never see them) ----------


@dataclass(frozen=True, slots=True)
class RecordSlot:
    """One slot of a rank's local record: its bytes come in pieces."""

    number: Annotated[int, Between(0, limits.RECORD_SLOTS - 1)]
    step: Step
    length: Annotated[int, Between(0, limits.MAX_COPY)]


@dataclass(frozen=True, slots=True)
class SetupOffer:
    """The pieces of the record of a rank's set-up. Repeated until no more of them is wanted."""

    rank: RankId
    incarnation: Incarnation
    lineage: Count
    length: Annotated[int, Between(0, limits.MAX_SETUP_COPY)]
    digests: Digests


@dataclass(frozen=True, slots=True)
class SetupWanted:
    """The pieces that are to be sent next, in either direction. None: all are there, or, if `kept` is False, there is
    no room for them."""

    rank: RankId
    lineage: Count
    kept: bool
    digests: Digests


@dataclass(frozen=True, slots=True)
class SetupPiece:
    """A piece, known by its digest. It is sent when it was asked for, in either direction."""

    data: Annotated[bytes, AtMost(limits.SETUP_PIECE)]


@dataclass(frozen=True, slots=True)
class RecordsAsk:
    """A newcomer is to start, and its node has no records of the rank's former life. Repeated until answered."""

    rank: RankId


@dataclass(frozen=True, slots=True)
class RecordsAnswer:
    """All records that there are. The pieces have to be asked for. `lineage` 0: there are none, for this reason."""

    rank: RankId
    incarnation: Incarnation  # the incarnation that has written them
    lineage: Count
    slots: Annotated[tuple[RecordSlot, ...], AtMost(limits.RECORD_SLOTS)]
    slot_digests: SlotDigests  # of all slots' pieces, one slot after another
    length: Annotated[int, Between(0, limits.MAX_SETUP_COPY)]
    digests: Digests
    reason: Text


# ---- operators ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Question:
    """An operator asks about the state of the job, or wants a rail in or out of use. manager/loop.py has the topics."""

    topic: Name
    argument: Text


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer as JSON text, or the sentence that says why there is none."""

    ok: bool
    text: Annotated[str, AtMost(limits.MAX_REPLY_TEXT)]


MESSAGES: tuple[type, ...] = (
    WorkerHello,
    WorkerWelcome,
    StageReached,
    Evidence,
    WorkerLeaving,
    AgentHello,
    Report,
    Goodbye,
    Answer,
    Order,
    Stop,
    Question,
    Reply,
    StoreAsk,
    StoreAnswer,
    SetupOffer,
    SetupWanted,
    SetupPiece,
    RecordsAsk,
    RecordsAnswer,
    RailsFollowed,
    RailOrder,
    CountersShown,
    Proof,
    Proofs,
    Unmended,
    Stillness,
    Covered,
    StackAsked,
    StackTold,
    DeviceReport,
    RanksEnded,
    PauseOrder,
    PauseAnswer,
    PauseAnswers,
)
"""All messages that may stand alone on the wire. Their numbers are the indices in this tuple: append, never reorder."""

FromAgent = AgentHello | Report | Evidence | Goodbye | Proofs | Stillness | DeviceReport | PauseAnswers
ToAgent = Answer | Order | Stop | RailOrder | PauseOrder | Unmended | RanksEnded
FromWorker = (
    WorkerHello | StageReached | Covered | Evidence | WorkerLeaving | RailsFollowed | PauseAnswer | Proof | StackTold
)
ToWorker = WorkerWelcome | Order | Stop | RailOrder | PauseOrder | Unmended | RanksEnded | StackAsked
ToSession = WorkerWelcome | Order | Stop | Unmended
"""The messages that a worker's state machine takes. Other orders, the ends of other ranks and questions are for the
link."""
AboutRecords = SetupOffer | SetupPiece | RecordsAsk | SetupWanted
