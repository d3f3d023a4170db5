"""The nodes of a large job as its manager hears them: they introduce themselves, report, and follow orders at once.

No process and no socket: an event goes to whatever `take` is, and what comes back is followed here. So a job of any
size fits into one process, and what is timed is the manager's own work. It measures nothing itself.
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
    """One node: the number of its last message, and how each of its ranks stands."""

    sequence: int
    ranks: dict[int, RankReport]


class Nodes:
    """So many nodes with so many ranks each. All of them are there once `begin` has returned."""

    def __init__(self, nodes: int, per_node: int, take: Callable[[ManagerEvent], Sequence[ManagerEffect]]) -> None:
        self.take = take
        self.size = nodes * per_node
        self.nodes = {
            f"n{node:05}": _Node(0, {rank: replace(_READY, rank=rank, pid=rank + 1) for rank in _ranks(node, per_node)})
            for node in range(nodes)
        }
        self._per_node = per_node
        self._orders: dict[str, Order] = {}  # that have yet to be followed

    def begin(self) -> None:
        """All nodes introduce themselves, and all ranks train."""
        for name in self.nodes:
            hello = AgentHello(JOB, name, f"host-{name}", 1, self.size, True, self._per_node, INTERVAL_MS)
            self.say(name, hello)
        for name, node in self.nodes.items():
            self.say(name, Report(True, 1, tuple(node.ranks.values())))

    def say(self, name: str, message: FromAgent) -> Sequence[ManagerEffect]:
        """The agent of this node says something; orders that come of it wait to be followed."""
        node = self.nodes[name]
        node.sequence += 1
        effects = self.take(Said(Sender(name, 1, node.sequence), message))
        for effect in effects:
            if isinstance(effect, Tell) and isinstance(effect.message, Order):
                self._orders[effect.node] = effect.message
        return effects

    def kill(self, rank: int) -> Sequence[ManagerEffect]:
        """The process of this rank is killed, and its agent says so. Gives what comes of that."""
        name, node = self._node_of(rank)
        dead = replace(node.ranks[rank], state=RankState.DEAD, exit_code=-9)
        return self.say(name, Report(False, 1, (dead,)))

    def repair(self, rank: int) -> None:
        """This rank is killed, and its repair is followed to its end."""
        self.kill(rank)
        self.follow()

    def follow(self) -> None:
        """All ranks do what is ordered, until none is left to be done and the first step after it is made."""
        while self._orders:
            name, order = self._orders.popitem()
            for one in self.nodes[name].ranks.values():
                self._stands(name, _followed(one, order))
        for name, node in self.nodes.items():
            for one in node.ranks.values():
                self._stands(name, replace(one, updates=one.updates + 1, step=one.step + 1))

    def _stands(self, name: str, report: RankReport) -> None:
        """A rank has come so far: its agent says so at once, of this rank alone."""
        self.nodes[name].ranks[report.rank] = report
        self.say(name, Report(False, 1, (report,)))

    def rails(self, name: str, lines: tuple[RailReport, ...]) -> None:
        """A beat of this node that says how its rails stand."""
        self.say(name, Report(False, 1, (), 0, lines))

    def leave(self) -> None:
        """All agents say goodbye, one after the other."""
        for name in self.nodes:
            self.say(name, Goodbye("all workers of this node have ended in good order"))

    def _node_of(self, rank: int) -> tuple[str, _Node]:
        return next((name, node) for name, node in self.nodes.items() if rank in node.ranks)


def _ranks(node: int, per_node: int) -> range:
    return range(node * per_node, (node + 1) * per_node)


def _followed(report: RankReport, order: Order) -> RankReport:
    """How a rank stands when it has done what the order says."""
    seat = next((seat for seat in order.seats if seat.rank == report.rank), None)
    updates = report.updates
    if seat is not None and seat.incarnation > report.incarnation:
        report = replace(report, incarnation=seat.incarnation, pid=report.pid + 1)
        updates = -1
    if order.stage in (Stage.RESTORED, Stage.RUNNING):
        updates = order.updates
    return replace(report, epoch=order.epoch, stage=order.stage, updates=updates)
