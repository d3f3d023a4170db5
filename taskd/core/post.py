"""The state that the parts of the agent share: its identity, the manager's last word, and the effects of a step.

It keeps this state and collects effects; it decides nothing. What can go wrong, and what follows:

- *The same warning is due again and again*: it is logged once, and the number of different warnings is bounded.
- *There is no connection*: a message for the manager is not sent. The part that has it keeps it or drops it.

Invariants: term and epoch only grow. Not here: what an order means (seating), and when the manager is told what
(reporter).
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core import limits
from taskd.core.counters import Counters
from taskd.core.effects import AgentEffect, Send, Warn
from taskd.core.messages import FromAgent, Order, Stop
from taskd.core.types import Stage
from taskd.core.words import cut


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of an agent, for its whole life. `spawns`: it is the launcher, not a side process that only
    watches."""

    job: str
    node: str
    host: str
    pid: int
    spawns: bool
    slots: int
    interval_ns: int
    linger_ns: int = limits.LINGER_NS


class Post:
    """The shared state of one agent."""

    def __init__(self, who: Identity) -> None:
        self.who = who
        self.counters = Counters()
        self.term = self.epoch = 0
        self.order: Order | None = None
        self.stopping: Stop | None = None
        self.connected = False
        self._effects: list[AgentEffect] = []
        self._warned: set[str] = set()

    @property
    def in_repair(self) -> bool:
        """Whether the order in force belongs to a repair. Then ranks wait for something that only a manager can do."""
        return self.order is not None and self.order.stage is not Stage.RUNNING

    def do(self, *effects: AgentEffect) -> None:
        """Add these effects after those that were added before."""
        self._effects += effects

    def send(self, message: FromAgent) -> None:
        """Send this to the manager, if there is a connection."""
        if self.connected:
            self._effects.append(Send(message))

    def warn(self, text: str) -> None:
        """One sentence for this node's log, once."""
        if text not in self._warned and len(self._warned) < limits.MAX_UNHEARD_SENDERS:
            self._warned.add(text)
            self._effects.append(Warn(cut(text)))

    def take_effects(self) -> list[AgentEffect]:
        """Return the effects of this step, in order."""
        effects, self._effects = self._effects, []
        return effects
