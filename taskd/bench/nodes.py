"""The nodes of a large job as its manager sees them: they introduce themselves, report, and follow orders at once.

There is no process and no socket: each event goes to the function `take`, and the orders that it returns are followed
here. So a job of any size fits into one process, and only the manager's own work is timed. It measures nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from taskd.core.effects import ManagerEffect, Tell
from taskd.core.events import ManagerEvent, Said, Sender
from taskd.core.messages import AgentHello, FromAgent, Goodbye, Order, RailReport, RankReport, Report
from taskd.core.types import Phase, RankState, Stage

JOB = "bench"
INTERVAL_MS = 100
_READY = RankReport(
    rank=0,
    incarnation=1,
    pid=1,
    state=RankState.ALIVE,
    exit_code=0,
    acknowledged=True,
    epoch=0,
    stage=Stage.RUNNING,
    updates=5,
    step=5,
    phase=Phase.BODY,
    beat_age_ms=1,
    step_ms=100,
    reason="",
)


@dataclass
class _Node:
    """One node: the number of its last message, and the state of each of its ranks."""

    sequence: int
    ranks: dict[int, RankReport]


class Nodes:
    """This many nodes with this many ranks each. All of them are there once `begin` has returned."""

    def __init__(self, nodes: int, per_node: int, take: Callable[[ManagerEvent], Sequence[ManagerEffect]]) -> None:
        self.take = take
        self.size = nodes * per_node
        self.nodes = {
            f"n{node:05}": _Node(0, {rank: replace(_READY, rank=rank, pid=rank + 1) for rank in _ranks(node, per_node)})
            for node in range(nodes)
        }
        self._per_node = per_node
        self._orders: dict[str, Order] = {}  # not followed yet

    def begin(self) -> None:
        """Let all nodes introduce themselves, and report that all ranks train."""
        for name in self.nodes:
            hello = AgentHello(JOB, name, f"host-{name}", 1, self.size, True, self._per_node, INTERVAL_MS)
            self.say(name, hello)
        for name, node in self.nodes.items():
            self.say(name, Report(True, 1, tuple(node.ranks.values())))

    def say(self, name: str, message: FromAgent) -> Sequence[ManagerEffect]:
        """Send a message of this node's agent. The orders that result from it wait until `follow`."""
        node = self.nodes[name]
        node.sequence += 1
        effects = self.take(Said(Sender(name, 1, node.sequence), message))
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.message, Order):
                self._orders[effect.node] = effect.message
        return effects

    def kill(self, rank: int) -> Sequence[ManagerEffect]:
        """Report the death of this rank's process, as its agent does; return the manager's effects."""
        name, node = self._node_of(rank)
        dead = replace(node.ranks[rank], state=RankState.DEAD, exit_code=-9)
        return self.say(name, Report(False, 1, (dead,)))

    def repair(self, rank: int) -> None:
        """Kill this rank, and follow its repair to the end."""
        self.kill(rank)
        self.follow()

    def follow(self) -> None:
        """Let all ranks follow their orders until no order is left, and then make one step."""
        while self._orders:
            name, order = self._orders.popitem()
            for one in self.nodes[name].ranks.values():
                self._stands(name, _followed(one, order))
        for name, node in self.nodes.items():
            for one in node.ranks.values():
                self._stands(name, replace(one, updates=one.updates + 1, step=one.step + 1))

    def _stands(self, name: str, report: RankReport) -> None:
        """Store the new state of a rank; its agent reports this rank alone, at once."""
        self.nodes[name].ranks[report.rank] = report
        self.say(name, Report(False, 1, (report,)))

    def rails(self, name: str, lines: tuple[RailReport, ...]) -> None:
        """Send a report of this node with the state of its rails."""
        self.say(name, Report(False, 1, (), 0, lines))

    def leave(self) -> None:
        """Let all agents say goodbye, one after the other."""
        for name in self.nodes:
            self.say(name, Goodbye("all workers of this node have ended in good order"))

    def _node_of(self, rank: int) -> tuple[str, _Node]:
        return next((name, node) for name, node in self.nodes.items() if rank in node.ranks)


def _ranks(node: int, per_node: int) -> range:
    return range(node * per_node, (node + 1) * per_node)


def _followed(report: RankReport, order: Order) -> RankReport:
    """The state of a rank that has followed the order."""
    seat = next((seat for seat in order.seats if seat.rank == report.rank), None)
    updates = report.updates
    if seat is not None and seat.incarnation > report.incarnation:
        report = replace(report, incarnation=seat.incarnation, pid=report.pid + 1)
        updates = -1
    if order.stage in (Stage.RESTORED, Stage.RUNNING):
        updates = order.updates
    return replace(report, epoch=order.epoch, stage=order.stage, updates=updates)
