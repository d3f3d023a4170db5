"""Follows an order on one node: starts and ends the processes that it names here, and relays it to the workers.

What can go wrong, and what follows:

- *Orders are lost, duplicated or late*: epoch and stage fence them. The order in force is relayed until it is followed.
- *A seat goes to another incarnation*: the old process is ended first. The new one starts when the old one has gone.
- *All ranks begin anew*: this is logged once, because earlier steps are lost and a good end would not show it.

Invariant: an incarnation starts at most once. Not here: what a process says (crew), and the end of the node's work
(departure).
"""

from __future__ import annotations

from taskd.core.crew import Crew
from taskd.core.effects import End, Relay, Spawn, Warn
from taskd.core.local import LocalRank
from taskd.core.messages import Order, Seat
from taskd.core.post import Post
from taskd.core.types import Stage
from taskd.core.words import cut


class Seating:
    """Follows the order in force, as far as it concerns this node."""

    def __init__(self, post: Post, crew: Crew) -> None:
        self._post = post
        self._crew = crew

    def ordered(self, order: Order, now: int) -> None:
        """Take an order of the manager. An older one changes nothing."""
        post, held = self._post, self._post.order
        if order.epoch < post.epoch:
            post.counters.count("order of an older epoch")
            return
        if held is not None and order.precedes(held):
            post.counters.count("order of an older stage")
            return
        post.order, post.term, post.epoch = order, order.term, order.epoch
        if post.stopping is not None:
            return
        if post.who.spawns and order.fresh and (held is None or held.epoch < order.epoch):
            post.do(Warn(cut(f"all ranks start over: {order.reason}")))
        newcomer = order.stage is not Stage.RUNNING
        for seat in order.seats:
            if newcomer or order.fresh:  # a RUNNING order starts no rank, unless all start again
                self._take(seat, newcomer)
        self.relay(now)

    def _take(self, seat: Seat, newcomer: bool) -> None:
        """Start the process that this node has to start, or end the one whose seat has gone to another."""
        rival = self._crew.rival(seat, self._post.who.node)
        if rival is not None:
            self.end(*rival)
        elif self._crew.vacant(seat, self._post.who.node):
            self.start(seat.rank, seat.incarnation, newcomer)

    def start(self, rank: int, incarnation: int, newcomer: bool) -> None:
        """Start this incarnation here."""
        post = self._post
        if not post.who.spawns:
            post.warn(f"rank {rank} is to be started here, but this agent only watches")
            return
        self._crew.await_start(rank, incarnation, post.epoch, Stage.SETUP if newcomer else Stage.RUNNING)
        post.do(Spawn(rank, incarnation, post.epoch, newcomer))

    def end(self, record: LocalRank, reason: str) -> None:
        """End this process, unless another launcher has started it, or its end is under way."""
        if self._post.who.spawns and not record.ending:
            record.ending = True
            self._post.do(End(record.rank, record.incarnation, cut(reason)))

    def relay(self, now: int) -> None:
        """Send the order to every worker that has yet to follow it, but not to one that got it just now."""
        order = self._post.order
        if order is None or self._post.stopping is not None:
            return
        due = self._crew.to_be_told(order, now)
        if due:
            self._post.do(Relay(due, order))
