"""The native part of taskd: the beat page, the death watch, process states (csrc/native), interfaces and counters of
rails (csrc/rail). It knows no torch.

Times are CLOCK_MONOTONIC nanoseconds (`time.monotonic_ns()`), the same in all processes of a node. Everything that
waits lets go of the GIL. System errors are OSError with an errno; wrong arguments are ValueError, or TypeError for
numbers that do not fit their field. Nothing here decides what an observation means.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, final

PAGE_BYTES: int
PAGE_VERSION: int
GROUP_SLOTS: int
"""How many group slots a page has (60)."""

class Beat(NamedTuple):
    """What a rank's slot says. The beat thread stamps the three beat fields, the training thread the others."""

    beat_ns: int
    beat_period_ns: int
    beat_count: int
    progress_ns: int
    epoch: int
    step: int
    phase: int
    flags: int
    group: int
    sequence: int
    fresh: bool
    """False: the slot cannot be read whole (its writer died in the middle): all but the beat is the last good copy."""

class GroupBeat(NamedTuple):
    """What a group's slot says. A rank is inside collective `sequence` as long as `left_sequence` differs from it."""

    slot: int
    group: int
    epoch: int
    kind: int
    bytes: int
    sequence: int
    entered_ns: int
    left_sequence: int
    left_ns: int

class Order(NamedTuple):
    """The agent's last order in a page. The first has sequence 1."""

    sequence: int
    kind: int
    epoch: int
    at_ns: int

class Death(NamedTuple):
    """Evidence of one worker's end: "dead" also follows an exec() or the end of the beat thread alone."""

    key: int
    at_ns: int
    kind: Literal["dead", "left"]

class ExitState(NamedTuple):
    """How a process stands. `exit_code` is the exit code or minus the signal, and known only while "exiting"."""

    state: Literal["alive", "exiting", "gone"]
    exit_code: int | None

@final
class Page:
    """One worker's beat page: 4 KiB of sealed shared memory without a name. Made by the worker, attached by its agent.

    In a forked child every page is replaced by private zeroes and its descriptor by /dev/null. A page is let go with
    the last reference, but a running beat keeps it until stop_beat() or the end of the process.
    """

    @staticmethod
    def create(rank: int, incarnation: int) -> Page:
        """A new page of this process. ValueError for a negative rank."""

    @staticmethod
    def attach(fd: int) -> Page:
        """Another process's page; `fd` is duplicated and stays the caller's. ValueError if it is no usable page.

        Identity is what the other process wrote: compare `pid` with the socket's peer credentials.
        """

    @property
    def fd(self) -> int:
        """The page's own descriptor, to be passed on; close-on-exec."""

    @property
    def rank(self) -> int: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def pid(self) -> int: ...
    @property
    def start_time(self) -> int:
        """Of the process, in clock ticks after boot: a later process with the same pid has another."""

    @property
    def address(self) -> int:
        """Where PageLayout (csrc/native/page.hpp) is mapped, for native code that keeps this object alive."""

    @property
    def life(self) -> Literal["new", "beating", "left", "dead"]:
        """What a death watch would see now. "new": no beat was started yet."""

    @property
    def closed(self) -> bool:
        """Whether the worker announced an orderly end."""

    @property
    def beating(self) -> bool:
        """Whether this object runs a beat in this process."""

    def start_beat(self, period_ns: int) -> None:
        """Starts the beat; returns after the first one. RuntimeError if not this process's page, or beaten before."""

    def stop_beat(self) -> None:
        """The orderly end: announces it, lets go, joins the thread. RuntimeError if no beat was started."""
    # Stores say whether they were made: False, after 20 ms or more, if another writer never let go of the slot.
    def store(self, epoch: int, step: int, phase: int, group: int = 0, sequence: int = 0) -> bool: ...
    def store_phase(self, phase: int) -> bool: ...
    def store_step(self, step: int, phase: int) -> bool: ...
    def store_sequence(self, group: int, sequence: int) -> bool: ...
    def store_epoch(self, epoch: int) -> bool:
        """Unlike the stores above, this one and store_flags() are no progress and leave `progress_ns`."""

    def store_flags(self, flags: int) -> bool: ...
    def enter_group(self, slot: int, group: int, epoch: int, sequence: int, kind: int, bytes: int = 0) -> bool:
        """Says in group slot `slot` that collective `sequence` is entered now."""

    def leave_group(self, slot: int, sequence: int) -> bool:
        """Says in group slot `slot` that collective `sequence` is left now."""

    def clear_group(self, slot: int) -> bool:
        """Empties group slot `slot`, so that readers see no group in it."""

    def read(self) -> Beat | None:
        """None only if the slot was never whole since this object exists."""

    def read_groups(self) -> list[GroupBeat]:
        """The slots in use, without those that cannot be read whole just now."""

    def order(self, kind: int, epoch: int) -> int:
        """The agent's part: gives an order, wakes those who wait for it, returns its sequence."""

    def read_order(self) -> Order | None:
        """The last order that could be read whole, None if there is none yet."""

    def wait_order(self, after_sequence: int, timeout_ns: int) -> Order | None:
        """Waits for an order whose sequence is not `after_sequence`; None when the time is over. Serves signals."""

def scan(pages: Sequence[Page]) -> list[Beat | None]:
    """read() of all the pages in one call."""

@final
class DeathWatch:
    """Reports each watched page's end once, about 0.1 ms after it. A forked child makes its own."""

    def __init__(self) -> None: ...
    @property
    def fd(self) -> int:
        """Readable while there is something to take(); -1 once closed."""

    def add(self, page: Page, key: int) -> None:
        """Watches from now on, ends that have already come included. ValueError if the key is in use."""

    def remove(self, key: int) -> None:
        """Ends one watch, and drops its report if not taken yet. ValueError for an unknown key."""

    def take(self) -> list[Death]:
        """The reports that came since the last call. A key stays in use until it is removed."""

    def close(self) -> None: ...

def exit_state(pid: int, start_time: int) -> ExitState:
    """From /proc. Confirms other evidence: a process whose first thread alone has ended looks "exiting", too.

    A process that dumps core counts as exiting: its beat has stopped, and death watch and pidfd are silent until the
    dump is written. The exit code is None until it is proven: a 0 may mean that it is not written yet, so it counts
    once the process has let go of its memory.
    """

def confirm_exit(pid: int, start_time: int, timeout_ns: int) -> ExitState:
    """exit_state() every 0.2 ms until its exit code is proven, it is gone or the time is over; the last one is
    returned."""

def process_start_time(pid: int) -> int:
    """In clock ticks after boot. ProcessLookupError if there is no such process."""

def thread_count() -> int:
    """How many threads this process has, those of libraries included."""

def set_child_subreaper() -> None:
    """Orphans among this process's descendants become its children."""

def set_parent_death_signal(signal: int) -> None:
    """`signal` (0: none) comes when the thread that forked this process ends. Compare os.getppid() afterwards."""

def close_on_fork(fd: int) -> None:
    """Replaces `fd` by /dev/null in forked children. ValueError if it is not open. keep_on_fork() before closing it."""

def keep_on_fork(fd: int) -> None:
    """Undoes close_on_fork()."""

def hold_gil(seconds: float) -> None:
    """Keeps the GIL, for tests and benchmarks of what others do meanwhile."""

def listen(listener: Callable[[str, tuple[Any, ...]], None] | None) -> None:
    """Tells this function, in place of the one before, of Python's audit events about files, folders, programs, sockets
    and databases. An error that it raises keeps the act from happening."""

def bench_store(n: int) -> float:
    """Nanoseconds that one store takes in native code, over `n` stores into a page of its own."""

# ---- rails ----------------------------------------------------------------------------------------------------

RAIL_NAME_BYTES: int
"""The longest name of a rail that is counted whole (31)."""

class Address(NamedTuple):
    """One address of an interface."""

    text: str
    version: Literal[4, 6]
    prefix: int

class Interface(NamedTuple):
    """One network interface."""

    name: str
    number: int
    up: bool
    """Switched on by its administrator."""
    carrier: bool
    """And something answers at the other end of the cable."""
    loopback: bool
    master: int
    """The number of the bridge or bond that it is a part of; 0: none."""
    kind: str
    """Of a virtual one: "bridge", "veth", "bond" and so on; empty: hardware."""
    addresses: tuple[Address, ...]

def list_interfaces() -> list[Interface]:
    """All of this network namespace, as netlink tells. OSError where the kernel does not tell."""

@final
class RailCounter:
    """What one rail to one peer has carried, and how it stands; made by RailCounters.open()."""

    def count(
        self,
        *,
        bytes_out: int = 0,
        bytes_in: int = 0,
        hedged: int = 0,
        retransmitted: int = 0,
        duplicates: int = 0,
    ) -> None:
        """Adds to the counters; one thread at a time."""

    def set_state(self, state: int, error: int = 0, round_trip_ns: int = 0) -> None:
        """`state` is a core.types.RailState, `error` an errno; 0 leaves what was there."""

    def prove_anew(self) -> None:
        """The rail was ordered anew: that it carries has to be seen from now on."""

    def close(self) -> None:
        """Nobody uses the rail to this peer any more; its figures stay readable."""

@final
class RailCounters:
    """Counters of a transport that is driven from Python, as taskd._c10d keeps its own: a sealed memory file."""

    def __init__(self, capacity: int = 16384) -> None: ...
    @property
    def fd(self) -> int:
        """To be passed to the agent; close-on-exec."""

    def open(self, rail: str, peer: int, node: str, epoch: int) -> RailCounter:
        """The counters of this rail to this rank on that node, which go on from epoch to epoch. It stands at
        PROBING until set_state()."""

class RailSum(NamedTuple):
    """One rail to one peer node, summed over ranks and their peers. Pairs are of now, other counts only grow."""

    rail: str
    node: str
    state: int
    """A core.types.RailState: the worst of the pairs."""
    since_ns: int
    pairs: int
    pairs_up: int
    pairs_moved: int
    """That have carried data since they were connected or ordered last."""
    pairs_starved: int
    """That are up and have not, while other rails carried much between the same two ranks."""
    bytes_out: int
    bytes_in: int
    round_trip_ns: int
    downs: int
    hedged: int
    retransmitted: int
    duplicates: int
    last_error: int

class RailTotals(NamedTuple):
    """What belongs to no rail, over the processes that are there."""

    unrecorded: int
    strangers: int
    """Connections that did not prove the job's key."""
    garbage: int
    stale: int

@final
class RailTally:
    """The counters of all processes of a node, summed. What a process has counted stays when it is gone."""

    def __init__(self, starved_bytes: int) -> None:
        """`starved_bytes`: what other rails carry, either way, before a rail that carries nothing is starved."""

    def add(self, fd: int) -> int:
        """Take the counters behind this descriptor (duplicated) in; gives a number for remove(). ValueError if it is
        no file of counters that can be read safely."""

    def remove(self, number: int) -> None:
        """Its process has ended."""

    def read(self) -> list[RailSum]:
        """Every rail and peer node that was ever used, in order."""

    def totals(self) -> RailTotals: ...

def digests(pieces: Sequence[tuple[int, int]]) -> list[int]:
    """Of each piece of this process' memory (address, bytes): 64 bits that differ when its contents differ, at the
    speed of memory. A change within one word of 8 bytes is never missed."""
