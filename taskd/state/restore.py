"""Brings the ranks of a new epoch to one state: compare the set-ups, give or take the update, put local state right.

Called on every rank at the same stage of a repair, after the groups were made anew, so that its own collectives match.
Which rank gives to which was decided by the manager (the order's `fetches`).

Invariant: returns only when this rank stands at the start of step `order.updates` with the state that the fault-free
run would have there; whatever keeps it from that is an error with a sentence.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from taskd.comm import guard
from taskd.core.messages import Order
from taskd.errors import Misfit, PeerError, StepAbandoned, UsageError
from taskd.state import local, manifest, replica, tree
from taskd.state.record import Record

_CARRIED = struct.Struct("<I")
"""How many loops and pieces of work between them the giver has entered; the kind of its gradients follows."""
_MEETING = 0x7461736B64766172
"""What a rank sends first that is where `everyone` is."""


@dataclass(slots=True, frozen=True)
class Circle:
    """Who takes part: this `rank`, which of all are `newcomers`, and which `parts` of the model they have, by rank."""

    rank: int
    newcomers: set[int]
    parts: list[int]

    @property
    def alike(self) -> list[int]:
        """The ranks that have this rank's part."""
        return self.having(self.parts[self.rank])

    def having(self, part: int) -> list[int]:
        """The ranks that have this one."""
        return [rank for rank, one in enumerate(self.parts) if one == part]


def restore(
    order: Order, rank: int, loop: Any, inherited: Record | None, alone: Callable[[int], AbstractContextManager[None]]
) -> None:
    """`inherited`: the record of this rank's life before, for a newcomer; `alone(epoch)`: collectives stay local."""
    # An order names the seats of this rank's node alone, so each says for itself whether it is new.
    circle = _begin(loop.refusal(order.updates), rank, any(seat.rank == rank for seat in order.seats), loop.part)
    _compare(manifest.describe(loop.replica, guard.groups()), circle)
    if not circle.newcomers:
        loop.all_try(order.updates)
    _settle(order.epoch, loop, alone, circle)
    found = inherited.find(order.updates) if inherited is not None else None
    _replicas(order.updates, loop, local.origin_of(found[1]) if found is not None else loop.origin, circle)
    peers = [fetch.rank for fetch in order.fetches if fetch.source == rank]
    carried: tuple[int, bytes, dict[str, torch.Tensor]] = 0, b"", {}
    source = next((fetch.source for fetch in order.fetches if fetch.rank == rank), None)
    if source is not None:
        loop.let_go()
        extra, gradients = replica.take(loop.replica, source)
        carried = *_CARRIED.unpack_from(extra), extra[_CARRIED.size :], gradients
    elif peers:
        # What it gives must be what it goes on with: the step that was given up has moved schedulers and counters.
        loop.return_to(order.updates)
        places, kind, gradients = loop.carried()
        replica.give(loop.replica, peers, _CARRIED.pack(places) + kind, gradients)
        return
    if inherited is None:
        loop.return_to(order.updates)
        loop.carry(*carried)
        return
    if found is None:
        raise PeerError(
            f"rank {rank} cannot go on after {order.updates} updates: "
            f"the record of its life before holds {inherited.held()}"
        )
    loop.take_over(order.updates, *found)
    loop.carry(*carried)


def everyone(mine: bytes) -> list[bytes]:
    """What each rank says here, by rank. All of them come here, and nothing else is communicated meanwhile. Raises
    PeerError if they do not, as far as that can be seen."""
    rows = _gather([_MEETING, len(mine)])
    longest = max(row[1] for row in rows)
    if any(row[0] != _MEETING or not 0 <= row[1] <= tree.MAX_BYTES for row in rows):
        raise PeerError("ranks do not meet where a step begins after a repair: do they communicate between two steps?")
    padded = torch.frombuffer(bytearray(mine.ljust(longest, b"\0") or b"\0"), dtype=torch.uint8)
    return [bytes(text.tolist())[: row[1]] for text, row in zip(_all(padded), rows, strict=True)]


def _gather(values: list[int]) -> list[list[int]]:
    """Every rank's row of numbers."""
    return [row.tolist() for row in _all(torch.tensor(values, dtype=torch.int64))]


def _rows(values: list[int]) -> list[list[int]]:
    """Every rank's numbers, of which each may have as many as it likes."""
    longest = max(row[0] for row in _gather([len(values)]))
    rows = _gather([len(values), *values, *[0] * (longest - len(values))])
    return [row[1 : 1 + row[0]] for row in rows]


def _all(mine: torch.Tensor) -> list[torch.Tensor]:
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, mine)
    return everyone


def _begin(refusal: str, rank: int, newcomer: bool, part: int) -> Circle:
    """Who takes part. One may know why this repair would go on wrongly: raises UsageError with its words, on every
    rank."""
    text = refusal.encode()
    rows = _gather([len(text), newcomer, part])
    longest = max(row[0] for row in rows)
    if not longest:
        return Circle(rank, {other for other, row in enumerate(rows) if row[1]}, [row[2] for row in rows])
    padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
    theirs = [bytes(row.tolist()).decode().strip() for row in _all(padded)]
    raise UsageError(next(filter(None, theirs)))


def _compare(own: manifest.Manifest, circle: Circle) -> None:
    """All ranks agree on what they have set up, and those that have the same part of the model, on all of it.

    A newcomer that differs raises Misfit, and the others leave this epoch by StepAbandoned: it ends, and that makes the
    next one. Where ranks differ that have trained together, every one raises UsageError with the first difference.
    """
    digests = _gather([manifest.digest(own)])
    if all(row == digests[0] for row in digests):
        return
    rank, newcomers = circle.rank, circle.newcomers
    text = json.dumps(own).encode()
    longest = max(row[0] for row in _gather([len(text)]))
    padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
    theirs = [json.loads(bytes(row.tolist())) for row in _all(padded)]
    differences = manifest.groups_apart(theirs, newcomers)
    for part in {*circle.parts}:
        _differences(theirs, circle.having(part), newcomers, differences)
    for other in [at for at in range(len(theirs)) if at not in newcomers] or [*range(len(theirs))]:
        if other in differences:
            raise UsageError(differences[other])
    if rank in differences:
        raise Misfit(differences[rank])
    if differences:
        raise StepAbandoned("a newcomer is not set up like the others, and ends")


def _differences(theirs: list[manifest.Manifest], ranks: list[int], newcomers: set[int], found: dict[int, str]) -> None:
    """Which of these ranks are not set up like most of them; into `found`."""
    old = [rank for rank in ranks if rank not in newcomers] or ranks
    bare = {rank: manifest.digest(theirs[rank], groups=False) for rank in ranks}
    usual = max(old, key=lambda rank: ([*bare.values()].count(bare[rank]), -rank))
    for other in ranks:
        if sentence := manifest.difference(theirs[usual], theirs[other], usual, other):
            found[other] = sentence


def _replicas(updates: int, loop: Any, origin: int, circle: Circle) -> None:
    """All have begun with the same, and whoever holds the agreed update holds the same, or one rank's state is no
    other's. So it is among those that have the same part of the model. Raises UsageError."""
    rows = _gather([origin, loop.held(), manifest.contents(loop.replica)])
    began = {rank: rows[rank][0] for rank in circle.alike if rows[rank][0] >= 0}
    hold = {rank: rows[rank][2] for rank in circle.alike if rows[rank][1] == updates}
    for found, words in ((began, "have begun with"), (hold, f"hold after the same {updates} updates")):
        first = min(found, default=0)
        other = next((rank for rank in found if found[rank] != found[first]), None)
        if other is not None:
            raise UsageError(
                f"different parameters are what ranks {first} and {other} {words}: they do not train replicas of one "
                "model, so no rank's state can replace another's"
            )


def _settle(epoch: int, loop: Any, alone: Callable[[int], AbstractContextManager[None]], circle: Circle) -> None:
    """Ranks agree on where the loops that are over have ended, on the work between them that is over, and, those with
    the same part of the model, on the buckets that DDP has settled on where any of them has."""
    loop.settle(max(row[0] for row in _gather([loop.passed])))
    ends = _rows([*loop.ends])
    loop.ends[:] = max(ends, key=len)
    own = manifest.rebuilt(loop.replica)
    rows = _rows([*map(int, own)])
    wanted = [
        [max(column) for column in zip(*(rows[other] for other in circle.having(part)), strict=True)]
        for part in circle.parts
    ]
    if rows != wanted:
        orders = _rows(manifest.orders(loop.replica))
        mine = [*map(bool, wanted[circle.rank])]
        if mine != own:
            with alone(epoch):
                manifest.settle_buckets(loop.replica, mine, [orders[rank] for rank in circle.alike])
    _compare({"DDP buckets, by module": manifest.buckets(loop.replica)}, circle)
