"""The setting of a story's processes: loop, network, random numbers, the crowd, and the records of the job.

Manager, nodes and workers see the story only through this class. So they need not know each other or the whole. Some
tasks need the whole story (start a job again, judge an end). They are abstract here, and world.py implements them.
It does NOT know which processes are in the story.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskd.core.agent import Agent
from taskd.core.effects import EndJob
from taskd.core.events import ManagerEvent
from taskd.core.manager import Manager
from taskd.core.messages import Order, RailOrder
from taskd.core.pause.guard import StepGuard
from taskd.core.worker import Worker
from taskd.sim.crowd import Crowd, Group
from taskd.sim.loop import Loop
from taskd.sim.network import Network
from taskd.sim.scenario import Options, draw
from taskd.sim.watch import Violation, Watch
from taskd.wire.codec import Envelope, WireError, decode, encode

NAME = "manager"
"""The manager's name in the network and in the story."""
JOB = "sim"
WIRE_SHARE = 8
"""One message in this many goes through the wire's encoding and back. Orders always do."""


@dataclass(frozen=True, slots=True)
class Machines:
    """The classes of the core's state machines: the production ones, or broken ones that the checkers must catch."""

    manager: Callable[..., Manager] = Manager
    agent: Callable[..., Agent] = Agent
    worker: Callable[..., Worker] = Worker
    guard: Callable[..., StepGuard] = StepGuard


class Setting(ABC):
    """Everything of one story except the processes."""

    def __init__(self, options: Options, machines: Machines) -> None:
        self.machines = machines
        self.scenario, self.rng = draw(options)
        scenario = self.scenario
        self.loop = Loop()
        self.network = Network(self.loop, self.rng, scenario.weather)
        self.watch = Watch(options.ranks)
        self.crowd = Crowd(self.loop, self.watch, options.ranks, scenario.pace, scenario.salt)
        self.ended: EndJob | None = None
        self.orders = 0
        self.restarts = Counter[int]()
        self.codes: dict[int, int] = {}  # exit codes of the ranks whose last process has ended
        self.generation = 0  # how often an external launcher has started the job
        self.struck = Counter[str]()  # faults, by kind
        self.planted = Counter[str]()  # faults that wait for a process to do something
        self.asides = 0  # messages with proofs, about still ranks or a pause, that agents have sent
        self._pids = 1_000
        self._checked = 0

    def next_pid(self) -> int:
        """A process number that no other process of this story has had."""
        self._pids += 1
        return self._pids

    def between(self, span: tuple[int, int]) -> int:
        """A random duration."""
        return self.rng.randint(*span)

    def strikes(self, kind: str) -> bool:
        """Whether a planted fault of this kind strikes the caller. Each planted fault strikes once."""
        if not self.planted[kind]:
            return False
        self.planted[kind] -= 1
        return True

    def over(self) -> bool:
        """Whether the job has ended."""
        return self.ended is not None

    def first_group(self, epoch: int) -> Group:
        """The group that is made by a set-up outside of a repair."""
        return self.crowd.group(epoch if self.scenario.launches else -self.generation)

    def guarded(self, function: Callable[..., Any], *arguments: Any, who: str) -> Any:
        """Call a state machine of the core. It must not raise, for any input."""
        try:
            return function(*arguments)
        except Violation:
            raise
        except Exception as error:
            told = arguments[-1] if arguments else ""
            raise Violation("core", f"{who} raised {type(error).__name__} ({error}) when told {told}") from error

    def check_wire(self, message: Any) -> None:
        """Encode and decode a share of all messages with the production codec. Bounds must hold, nothing may change."""
        self._checked += 1
        if self._checked % WIRE_SHARE and not isinstance(message, Order):
            return
        try:
            read = decode(encode(message, Envelope(JOB, "n", 1, self._checked)))
        except AssertionError as error:
            raise Violation("bounds", f"{error} in {message}") from error
        if isinstance(read, WireError) or read[1] != message:
            raise Violation("bounds", f"{message} came back from the wire as {read}")

    # ---- what a worker or a node tells the story, and asks of it -----------------------------------------------

    @abstractmethod
    def worker_started(self, worker: Any) -> None:
        """A worker was started in place of another one."""

    @abstractmethod
    def worker_died(self, worker: Any, exit_code: int) -> None:
        """A process has ended."""

    @abstractmethod
    def ends(self, worker: Any, reason: str) -> None:
        """An agent ends a process."""

    @abstractmethod
    def manager_lives(self) -> bool:
        """Whether the manager lives, so that an agent can connect."""

    @abstractmethod
    def with_rails(self, node: str, message: Any) -> Any:
        """The report with the rail counters that the node's agent reads."""

    # ---- what the manager tells the story ----------------------------------------------------------------------

    @abstractmethod
    def wrote(self, event: ManagerEvent) -> None:
        """The manager has written this into its journal."""

    @abstractmethod
    def rails_ordered(self, node: str, order: RailOrder) -> None:
        """The manager sends a node a rail order."""

    @abstractmethod
    def given_up(self, node: str, text: str) -> None:
        """The manager declares a node lost."""

    @abstractmethod
    def job_ended(self, end: EndJob) -> None:
        """The manager says that the job is over."""

    @abstractmethod
    def harm(self) -> None:
        """Note that something goes wrong now that may make a repair fail."""

    @abstractmethod
    def manager_restarts(self) -> None:
        """A new manager has read the journal, and has done nothing yet."""

    @abstractmethod
    def manager_is_back(self) -> None:
        """A new manager is at work: agents connect again."""
