"""The rail orders to nodes: one numbered order for each node, repeated until the node holds it.

An order gives the state of all rails of a node. Failure modes, and what follows:

- *An order is lost*: the node's reports name the order that it holds, and the newest order is sent again.
- *The journal is lost*: an agent holds an order that this manager never gave. A new order with the next number tells it
  the valid state.

Invariant: numbers only grow, over the whole job. It does NOT decide the state of rails (rails), and it does not know
whether ranks have followed (verification).
"""

from __future__ import annotations

from taskd.core import limits
from taskd.core.job import Job
from taskd.core.messages import RailOrder
from taskd.core.rails.standing import Standing
from taskd.core.times import long_ago
from taskd.core.words import cut


class RailOrders:
    """The number of each node's order in force, and when it was last sent."""

    def __init__(self, job: Job, standing: Standing) -> None:
        self._job = job
        self._standing = standing
        self.newest = 0
        self._numbers: dict[str, int] = {}  # the number of each node's order in force
        self._told_at: dict[str, int] = {}

    def give(self, nodes: tuple[str, ...], reason: str, now: int) -> None:
        """Send these nodes a new order with the state of their rails."""
        self.newest += 1
        for node in nodes:
            self._numbers[node] = self.newest
            self._tell(node, cut(reason), now)

    def remind(self, node: str, holds: int, now: int) -> bool:
        """A node's agent holds order number `holds`. If another is in force, send that one again. True: sent."""
        number = self._numbers.get(node, 0)
        if holds == number or self._job.over is not None:
            return False
        if holds - number > limits.MAX_LEAP:
            self._job.members.counters.count("leap of a rail order")
            return False
        if holds > number:
            self.newest = max(self.newest, holds)
            text = f"node {node} holds rail order {holds} of the past: it is told what holds now"
            self._job.note("rail", text, node=node)
            self.give((node,), "as the manager knows the rails", now)
            return True
        if not long_ago(self._told_at.get(node), now, limits.ORDER_REPEAT_NS):
            return False
        self._tell(node, "as before", now)
        return True

    def forget(self, node: str) -> None:
        """A node is gone."""
        self._numbers.pop(node, None)
        self._told_at.pop(node, None)

    def restart(self) -> None:
        """The manager was restarted: orders may be repeated to all nodes at once."""
        self._told_at.clear()

    def _tell(self, node: str, reason: str, now: int) -> None:
        self._told_at[node] = now
        self._job.tell(node, RailOrder(self._job.term, self._numbers[node], self._standing.out(node), reason))
