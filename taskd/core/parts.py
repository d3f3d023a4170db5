"""The parts of an order: each node is sent the order with only the seats and fetches that concern its ranks.

An order of a large job names all its ranks. To send the whole order to each node would cost the square of the job's
size, in time and in bytes. A node needs:

- *seats on the node*, because it may have to start their ranks;
- *seats of ranks that are there, or were there once*: if such a seat is elsewhere now, its old process has to end;
- *fetches* that a rank of the node makes, or serves.

Invariants: a node's part is an order like any other; all nodes without seats and fetches are sent the same object,
which a shell encodes once. Not here: which node is told, and when (job, nodes).
"""

from __future__ import annotations

from dataclasses import replace

from taskd.core.messages import Fetch, Order, Seat
from taskd.core.records import NodeRecord


class Parts:
    """One order, by node. Building it reads each seat and fetch once. A part reads each rank of the node once."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self._rest = replace(order, seats=(), fetches=()) if order.seats or order.fetches else order
        self._seats = {seat.rank: seat for seat in order.seats}
        self._by_node: dict[str, list[int]] = {}
        for seat in order.seats:
            self._by_node.setdefault(seat.node, []).append(seat.rank)
        self._fetches: dict[int, list[Fetch]] = {}  # by the rank that makes or serves them
        for fetch in order.fetches:
            self._fetches.setdefault(fetch.rank, []).append(fetch)
            self._fetches.setdefault(fetch.source, []).append(fetch)

    def of(self, node: NodeRecord) -> Order:
        """Return the order that this node is sent."""
        seated = {*self._by_node.get(node.name, ())}
        seated |= {rank for ranks in (node.ranks, node.former_ranks) for rank in ranks if rank in self._seats}
        fetches = {fetch.rank: fetch for rank in node.ranks for fetch in self._fetches.get(rank, ())}
        if not seated and not fetches:
            return self._rest
        seats: tuple[Seat, ...] = tuple(self._seats[rank] for rank in sorted(seated))
        return replace(self.order, seats=seats, fetches=tuple(fetches[rank] for rank in sorted(fetches)))
