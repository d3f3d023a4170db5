"""The nouns of the control plane: states, stages, phases, strategies. Each is an enum, so code cannot name a wrong one.

Every state machine of the core uses them. On the wire and in the beat page they are numbers. This module only names
things; the transition table of each machine says which state may follow which.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum, IntFlag


class Phase(IntEnum):
    """Where in its step a training process is. Written to the beat page by the training thread."""

    SETUP = 0  # before the first step
    BODY = 1  # in the step, the optimizer has not begun
    OPTIMIZER = 2  # inside the update
    APPLIED = 3  # the update is made, the step has not ended
    BETWEEN = 4  # between two steps
    PARKED = 5  # waiting for a repair or for an operator
    DONE = 6  # the training loop has ended


class PageFlag(IntFlag):
    """What a beat page says of its process besides its phase."""

    COMPILING = 1  # it compiles just now
    COMPILES = 2  # it has compiled; a process forked with the compiler imported would do the same, and sooner


class RankState(IntEnum):
    """What the manager and the agents know of one incarnation of one rank."""

    ABSENT = 0  # expected, never seen
    STARTING = 1  # its process was started, but has not said hello
    ALIVE = 2
    SUSPECT = 3  # something speaks against it, a second witness is wanted
    DEAD = 4
    LEFT = 5  # ended in good order


class GivenUp(Enum):
    """Why a rank was given up although its process lives. What people read is in the reason beside it."""

    NOT_FOLLOWED = "not followed"  # it did not do in time, or could not do, what an order asked for
    HUNG = "hung"
    WITH_ITS_NODE = "with its node"  # a policy wants its whole node to start again
    ASKED = "asked"  # an operator wants another process for it: no fault of the rank
    REFUSED = "refused"  # it says in a step that going on would be wrong, so all start over


class Stage(IntEnum):
    """How far a rank has come in the repair of its epoch. A rank outside a repair is RUNNING."""

    RUNNING = 0
    PARKED = 1  # a survivor gave up its step and waits; a newcomer has finished its set-up
    REBUILT = 2  # its communicators belong to the new epoch
    RESTORED = 3  # it holds the state of the agreed step
    SETUP = 4  # nothing of this epoch's repair yet: a newcomer in its set-up, a survivor on its way to PARKED
    SAVED = 5  # no repair follows in this epoch: one rank of each part has written the last checkpoint


PROGRESS = {
    Stage.SETUP: 0,
    Stage.PARKED: 1,
    Stage.SAVED: 2,
    Stage.REBUILT: 3,
    Stage.RESTORED: 4,
    Stage.RUNNING: 5,
}
"""The order in which the stages of one epoch follow each other. A repair ends with RUNNING."""


class EvidenceKind(IntEnum):
    """What was seen. One piece of evidence proves a crash. Silence needs a second witness, and only something that
    broke is one: a rank that has waited in vain has only seen the same silence. A number that once had another meaning
    is not used again."""

    PROCESS_EXIT = 1
    COLLECTIVE_ERROR = 2
    LINK_DOWN = 6
    LINK_UP = 7
    EXCEPTION = 8  # user code raised out of the training loop
    COLLECTIVE_LATE = 9  # it takes far longer than it ever did, and goes on: nothing has failed
    COLLECTIVE_TIMEOUT = 10  # it has failed, because nothing came within its time limit
    COMPILING = 11  # a repair waits for a rank that compiles: nothing is wrong


class Doing(IntEnum):
    """What a process without progress does, as its node's agent sees it from outside."""

    UNSEEN = 0  # the agent has not looked for long enough, or is not allowed to look
    WORKS = 1  # it, or a process that it has started, uses the processor, waits for one, or moves bytes
    COMPILES = 2  # with torch's compiler
    SLEEPS = 3  # it waits for something, and none of its threads or child processes works
    BLOCKED = 4  # the same, inside an uninterruptible wait of the kernel: a disk, a file server
    HOLDS_GIL = 5  # no other thread of its interpreter can run
    STOPPED = 6  # by a signal
    TRACED = 7  # by a debugger


class Cover(IntEnum):
    """What a rank knows about the effect of a death in this job."""

    UNKNOWN = 0
    HEALED = 1  # a death can be healed in place, by all that the rank has seen in a step
    STARTS_OVER = 2  # a death would make all ranks start over


class HangFinding(IntEnum):
    """What the manager found about the progress of the job."""

    STANDS = 0
    GOES_ON = 1
    GIVEN_UP = 2  # the rank that all others wait for is to be replaced


class RailState(IntEnum):
    """The state of a rail to one peer. csrc/rail/counters.hpp has the same numbers."""

    UP = 0
    SUSPECT = 1  # silent for longer than ever before: it carries nothing new until it has answered
    DOWN = 2
    PROBING = 3  # it connects again, or probes test whether it carries again


class RailFinding(IntEnum):
    """What the manager found about a rail. GONE and the findings before it are about a line, the others about the
    rail's use."""

    SILENT = 0
    ANSWERED = 1
    LOST = 2
    CONNECTED = 3
    PROVED = 4
    GONE = 5  # no rank uses the line any more
    LEND = 6
    RETURN = 7
    FOLLOWED = 8  # every rank has answered the order
    LATE = 9  # some rank has not answered in time
    REFUSED = 10  # some rank cannot
    VERIFIED = 11
    ROLL_BACK = 12


class DeviceKind(IntEnum):
    """What kind of event a device of a node (a GPU, an NPU) has reported."""

    XID = 1  # an error that NVIDIA's driver has logged under this name, with its number
    LOST = 2  # the device does not answer any more: it has fallen off its bus
    ECC_UNCORRECTED = 3
    ECC_CORRECTED = 4
    REMAP_PENDING = 5  # a row of its memory is replaced at its next reset
    REMAP_FAILED = 6  # a row of its memory cannot be replaced
    THROTTLED = 7  # heat or power slows it down
    HEALTH = 8  # an alarm of Ascend's driver


class Harm(IntEnum):
    """The consequence of a device's event."""

    WARNING = 0
    PROCESS = 1  # a process that uses the device fails; the next one may use it
    DEVICE = 2  # nothing may rely on the device before it was reset or replaced


class PauseKind(IntEnum):
    """What an order about a pause wants of a rank."""

    FREE = 0  # go on: nothing is paused
    ASK = 1  # tell which step you have begun, and begin no other one before you hear more
    STAND = 2  # do not begin the named step


class PauseFinding(IntEnum):
    """What the manager found about a pause."""

    AGREED = 0  # no rank has begun this step
    STANDS = 1  # every rank stands before it
    AGAIN = 2  # all ranks are to be asked once more
    WAITS = 3  # a repair is under way
    COUNTS = 4  # the first rank stands: the lease begins
    LAPSED = 5  # the lease has ended
    REFUSED = 6  # a rank cannot, or the operator's step is behind
    UNDONE = 7
    FORGOTTEN = 8  # a node holds a newer order than this manager has ever given
    UNTOLD = 9  # nodes do not hold the order in force


class StopKind(IntEnum):
    """Why an agent is told to stop. What people read is in the reason beside it."""

    OVER = 0  # the job is over, or cannot go on
    ASKED = 1  # an operator has stopped the job
    DRAINED = 2  # an operator has drained this node, and the job goes on


class ErrandKind(IntEnum):
    """What an operator wants done between two steps."""

    RESTART = 0  # one rank is replaced in place
    VACATE = 1  # all ranks of a node go to another one, and its launcher ends
    STOP = 2  # the job ends
    SAVE = 3  # the last checkpoint is written, and the job ends

    @property
    def stops(self) -> bool:
        """Whether the job is to end."""
        return self in (ErrandKind.STOP, ErrandKind.SAVE)


class ErrandFinding(IntEnum):
    """What the manager found about an errand."""

    ACT = 0  # all ranks stand, or the rank to be replaced does not come to a stand
    FREE = 1  # the ranks are replaced, so the others need not stand any longer
    MOVED = 2  # no rank is left on the node
    BACK = 3  # no other node has room any more
    DONE = 4
    FAILED = 5


class ProofFinding(IntEnum):
    """What the manager found in the proofs of the ranks."""

    BASE = 0  # the first comparison: all units that are equal are compared from now on
    EXCEPTED = 1  # never equal so far: replicas do not share this unit
    DIFFERS = 2  # equal before, and not now


class StoreOperation(IntEnum):
    """What a worker asks of the job's store. csrc/c10d/store.hpp has the same numbers."""

    SET = 0
    GET = 1  # waits until every key is there
    ADD = 2
    CHECK = 3
    WAIT = 4
    DELETE = 5
    COUNT = 6
    COMPARE_SET = 7
    APPEND = 8
    MULTI_SET = 9
    LIST = 10
    FORGET = 11  # only an agent sends this: the asking process is gone, `amount` is the number of its GET or WAIT


class StoreStatus(IntEnum):
    """How an operation on the job's store ended."""

    DONE = 0
    TIMED_OUT = 1
    FAILED = 2  # the answer's only item says why


class Strategy(Enum):
    """The ladder of strategies, from cheap to expensive. The values are the words that users write (HIGH_AVAILABILITY
    and the like). RETRY (the transport retries by itself) and SHRINK are understood, but no decision takes them.
    """

    OBSERVE = "observe"  # taskd does not recover this job: record, decide nothing
    RETRY = "retry"
    BORROW = "borrow"  # a rail is lost: others carry its traffic, no rank is touched; users do not write this word
    IN_PLACE = "recover-in-place"
    RESPAWN = "respawn"  # every rank starts again in place: nothing was trained yet, or no rank holds the state
    RECOVER = "recover"  # the lost ranks start on another node
    SHRINK = "elastic-training"
    DUMP = "dump"  # survivors write the last checkpoint, before all start again or the job ends
    EXIT = "exit"


class Outcome(Enum):
    """How an incident ended."""

    OPEN = "open"
    HEALED = "healed"
    STARTED_OVER = "started over"  # every rank began anew: all steps since the start are done again
    OBSERVED = "observed"  # only recorded: the launcher or an operator repaired it, or it was not repaired
    EXITED = "exited"


@dataclass(frozen=True, slots=True)
class Kept:
    """To which numbers of updates a rank can bring its part of the model by itself, from copies that outlive a process:
    from `first` to `last`. -1: to none."""

    first: int = -1
    last: int = -1

    def reaches(self, updates: int) -> bool:
        """Whether the rank can bring its part to this number of updates."""
        return 0 <= self.first <= updates <= self.last


NOTHING_KEPT = Kept()
