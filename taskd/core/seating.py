"""What an order means on one node: which processes are started and ended here, and who has yet to be told it.

What can go wrong, and what follows:

- *Orders lost, doubled, late*: fenced by epoch and stage; one that is in force is relayed until it is followed.
- *A seat goes to another incarnation*: the old process is ended first, the new one starts when it has gone.
- *All ranks begin anew*: that is said aloud, once, for nothing is as it was, and a good end would not show it.

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
        """The manager's word about the job. An older one changes nothing."""
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
            if newcomer or order.fresh:  # a RUNNING order starts nobody, unless all start again
                self._take(seat, newcomer)
        self.relay(now)

    def _take(self, seat: Seat, newcomer: bool) -> None:
        """Start whom this node is to start; end whose seat is another's."""
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
        """End this process, unless somebody else has started it, or that is under way."""
        if self._post.who.spawns and not record.ending:
            record.ending = True
            self._post.do(End(record.rank, record.incarnation, cut(reason)))

    def relay(self, now: int) -> None:
        """Tell the order to every worker that has yet to follow it, again if it was told long enough ago."""
        order = self._post.order
        if order is None or self._post.stopping is not None:
            return
        due = self._crew.to_be_told(order, now)
        if due:
            self._post.do(Relay(due, order))
