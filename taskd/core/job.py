"""The state that the parts of the manager share: the job's term, epoch and order, and a step's effects and journal.

It keeps this state and sends it; it decides nothing. What can go wrong, and what follows:

- *A rank missed the end of a repair*: it is behind. Its node is sent the order again until the rank has followed.
- *A rank waits in an epoch that this manager gave no order for*: the manager that led that repair has lost its memory,
  and a new repair has to begin.
- *The last epoch is forgotten, and all who knew it are gone*: the next one is far from it. A node that was only cut off
  may come back with processes of a forgotten epoch, and no order for ours may reach them.

Invariants: term and epoch only grow; when an order is published, every node that is up is sent its part before the step
ends.
Not here: how an order is sent again (nodes), and the new repair (repairs).
"""

from __future__ import annotations

from dataclasses import replace

from taskd.core import limits
from taskd.core.effects import ManagerEffect, Note, Tell
from taskd.core.events import ManagerEvent, Reached
from taskd.core.membership import Membership
from taskd.core.messages import Order, Stop, ToAgent
from taskd.core.parts import Parts
from taskd.core.records import NodeRecord, NodeState, RankRecord
from taskd.core.starts_over import StartsOver
from taskd.core.types import RankState, Stage, StopKind
from taskd.core.words import cut


class Job:
    """The state of the job as a whole."""

    def __init__(self, members: Membership, term: int) -> None:
        self.members = members
        self.term = term
        self.epoch = 1
        self.incident = 0  # number of the open incident; 0: none
        self.incidents = 0  # how many incidents there were
        self.starts_over = StartsOver()
        self.order: Order | None = None
        self.behind: set[int] = set()  # ranks that have yet to follow the order in force, outside a repair
        self.over: Stop | None = None
        self.effects: list[ManagerEffect] = []
        self.journal: list[ManagerEvent] = []  # the events of this step that a replay needs
        self.mattered = False  # the event of this step belongs into the journal, too
        self.said = False  # this step has a message for all nodes already
        self._published = False
        self._parts: Parts | None = None  # parts of the order in force, once it was sent to a node
        self._complete = False  # all ranks have joined once, which is reported once

    def note(self, kind: str, text: str, rank: int = -1, node: str = "", incident: int = -1) -> None:
        """Record what happened, as part of the open repair unless another incident is named."""
        part_of = self.incident if incident < 0 else incident
        self.effects.append(Note(kind, cut(text), rank, node, self.epoch, part_of))

    def tell_when_complete(self) -> None:
        """Report once that every rank is there."""
        size = self.members.world_size
        if not self._complete and size and self.members.counts[RankState.ALIVE] == size:
            self._complete = True
            self.note("complete", f"all {size} ranks are here")

    def next_epoch(self) -> None:
        """The ranks are put together anew. No epoch is used twice, not even a forgotten one."""
        self.epoch += 1
        if self.members.forgotten:
            self.members.forgotten = False
            left_out = min(self.term * limits.FORGOTTEN_EPOCHS, limits.MAX_FORGOTTEN_EPOCHS)
            self.epoch = min(self.epoch + left_out, limits.MAX_EPOCH)
            self.note("epoch", f"nobody is left who could tell the last epoch: going on from {self.epoch}")

    def next_incident(self) -> int:
        """The number of an incident that opens now."""
        self.incidents += 1
        return self.incidents

    def start_over(self, steps: int, saved: int, now: int, own: bool) -> None:
        """All ranks begin anew: see StartsOver.count."""
        self.starts_over.count(steps, saved, now, own)
        self.members.reached = 0
        self.journal.append(Reached(steps))

    def tell(self, node: str, message: ToAgent, life: int = 0) -> None:
        """Send this to a node's agent."""
        self.effects.append(Tell(node, message, life))

    def tell_order(self, node: NodeRecord, now: int) -> None:
        """Send a node's agent its part of the order in force."""
        assert self.order is not None
        if self._parts is None or self._parts.order is not self.order:
            self._parts = Parts(self.order)
        node.order_told_at = now
        self.tell(node.name, self._parts.of(node))

    def publish(self, order: Order) -> None:
        """Make this the order in force. It is sent to all nodes at the end of the step."""
        self.order = order
        self._published = self.said = True

    def compare(self, record: RankRecord) -> bool:
        """Compare a rank's report, outside a repair, with the order. True: it waits in a repair that this manager does
        not lead. Constant time."""
        report, order = record.report, self.order
        assert report is not None
        ahead = order is None or report.epoch > order.epoch
        behind = not ahead and (order is not None and (report.epoch, report.stage) != (order.epoch, order.stage))
        record.watched = behind
        if behind:
            self.behind.add(record.rank)
        else:
            self.behind.discard(record.rank)
        return ahead and report.stage not in (Stage.RUNNING, Stage.SETUP)

    def settle(self) -> None:
        """The repair is over. Its order stays as a plain membership, which starts and moves no rank."""
        self.incident = 0
        if self.order is not None and self.order.stage is Stage.RUNNING:
            self.order = replace(self.order, incident=0, seats=(), fetches=(), reason="")

    def renew_term(self, term: int) -> None:
        """Another life of the manager begins. Its order stays in force and is sent again in the new term."""
        assert term > self.term
        self.term = term
        if self.order is not None:
            self.publish(replace(self.order, term=term))
        if self.over is not None:
            self.over = replace(self.over, term=term)

    def finish(self, exit_code: int, reason: str, kind: StopKind) -> None:
        """The job is over: all agents are told to stop."""
        self.over = Stop(self.term, exit_code, cut(reason), kind)
        self._published = False
        self.said = True
        for name in sorted(self.members.nodes):
            self.tell(name, self.over)

    def take_effects(self, now: int) -> list[ManagerEffect]:
        """Return the effects of this step. The order to all nodes comes last."""
        if self._published and self.order is not None:
            self._published = False
            for name in sorted(self.members.nodes):
                node = self.members.nodes[name]
                if node.state in (NodeState.UP, NodeState.SILENT):
                    self.tell_order(node, now)
        self.said = False
        effects, self.effects = self.effects, []
        return effects
