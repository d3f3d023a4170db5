"""What the processes of a story stand in: loop, network, chance, the crowd, and the books that are kept of the job.

Manager, nodes and workers see the story through this class alone, and so need not know each other or the whole. What
only the whole can do for them (start a job again, judge an end) is left open here, and world.py does it.
It does NOT know who is in the story.
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
from taskd.core.worker import Worker
from taskd.sim.crowd import Crowd, Group
from taskd.sim.loop import Loop
from taskd.sim.network import Network
from taskd.sim.scenario import Options, draw
from taskd.sim.watch import Violation, Watch
from taskd.wire.codec import Envelope, WireError, decode, encode

NAME = "manager"
"""Of the manager, in the network and in the story."""
JOB = "sim"
WIRE_SHARE = 8
"""One message of this many goes through the wire's encoding and back; orders always."""


@dataclass(frozen=True, slots=True)
class Machines:
    """Who makes the core's machines: the production classes, or in tests broken ones that the checkers must catch."""

    manager: Callable[..., Manager] = Manager
    agent: Callable[..., Agent] = Agent
    worker: Callable[..., Worker] = Worker


class Setting(ABC):
    """Everything of one story but the processes."""

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
        self.codes: dict[int, int] = {}  # of the ranks whose last process has ended
        self.generation = 0  # of starts by a launcher that is not ours
        self.struck = Counter[str]()  # faults, by kind
        self.planted = Counter[str]()  # faults that wait for somebody to do something
        self.asides = 0  # messages with proofs, or of ranks that are still, that agents have sent
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
        """Whether a planted fault of this kind strikes whoever asks; each strikes once."""
        if not self.planted[kind]:
            return False
        self.planted[kind] -= 1
        return True

    def over(self) -> bool:
        """The job has ended."""
        return self.ended is not None

    def first_group(self, epoch: int) -> Group:
        """The group that a set-up outside of any repair makes."""
        return self.crowd.group(epoch if self.scenario.launches else -self.generation)

    def guarded(self, function: Callable[..., Any], *arguments: Any, who: str) -> Any:
        """Call a machine of the core: whatever it is told, it must not raise."""
        try:
            return function(*arguments)
        except Violation:
            raise
        except Exception as error:
            told = arguments[-1] if arguments else ""
            raise Violation("core", f"{who} raised {type(error).__name__} ({error}) when told {told}") from error

    def check_wire(self, message: Any) -> None:
        """A share of all messages is encoded and decoded by the production codec: bounds hold, nothing changes."""
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
        """A worker was started in the place of another."""

    @abstractmethod
    def worker_died(self, worker: Any, exit_code: int) -> None:
        """A process has ended."""

    @abstractmethod
    def ends(self, worker: Any, reason: str) -> None:
        """An agent ends a process."""

    @abstractmethod
    def manager_lives(self) -> bool:
        """Whether an agent can connect to it."""

    @abstractmethod
    def with_rails(self, node: str, message: Any) -> Any:
        """A report, with what the node's agent reads of its rails."""

    # ---- what the manager tells the story ----------------------------------------------------------------------

    @abstractmethod
    def wrote(self, event: ManagerEvent) -> None:
        """The manager has written this into its journal."""

    @abstractmethod
    def rails_ordered(self, node: str, order: RailOrder) -> None:
        """The manager tells a node how its rails shall stand."""

    @abstractmethod
    def given_up(self, node: str, text: str) -> None:
        """The manager takes a node for lost."""

    @abstractmethod
    def job_ended(self, end: EndJob) -> None:
        """The manager's word that the job is over."""

    @abstractmethod
    def manager_restarts(self) -> None:
        """A new manager has read the journal, and has done nothing yet."""

    @abstractmethod
    def manager_is_back(self) -> None:
        """A new manager is at work: agents connect again."""
