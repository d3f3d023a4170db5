"""What the parts of the agent share: who it is, what the manager has said last, and what a step fills.

It keeps and says; it decides nothing. What can go wrong, and what follows:

- *The same sentence is due again and again*: it is said once, and only so many different ones.
- *There is no connection*: what is for the manager is not sent; who has it keeps it, or lets it go.

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
    """Who an agent is, as long as it lives. `spawns`: it is the launcher; else a side process that only watches."""

    job: str
    node: str
    host: str
    pid: int
    spawns: bool
    slots: int
    interval_ns: int
    linger_ns: int = limits.LINGER_NS


class Post:
    """One agent at its post."""

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
        """The order in force is that of a repair: ranks wait for what only a manager can bring."""
        return self.order is not None and self.order.stage is not Stage.RUNNING

    def do(self, *effects: AgentEffect) -> None:
        """This is to be done, behind what was wanted before."""
        self._effects += effects

    def send(self, message: FromAgent) -> None:
        """Tell the manager, if there is a connection."""
        if self.connected:
            self._effects.append(Send(message))

    def warn(self, text: str) -> None:
        """One sentence for this node's log, once."""
        if text not in self._warned and len(self._warned) < limits.MAX_UNHEARD_SENDERS:
            self._warned.add(text)
            self._effects.append(Warn(cut(text)))

    def take_effects(self) -> list[AgentEffect]:
        """What this step wants done, in order."""
        effects, self._effects = self._effects, []
        return effects
