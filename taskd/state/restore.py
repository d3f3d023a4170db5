"""Brings the ranks of a new epoch to one state: compare the set-ups, give or take the update, correct local state.

It is called on every rank at the same stage of a repair, after the groups were made anew, so that its own collectives
match. The manager has decided which rank gives to which (the order's `fetches`).

Invariant: it returns only if this rank is at the start of step `order.updates`, with the state that a fault-free run
would have there. Anything that prevents this is an error with a sentence.
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

from taskd.comm import guard, ours
from taskd.core.messages import Order
from taskd.errors import Misfit, PeerError, StepAbandoned, UsageError
from taskd.state import kept_shards, local, manifest, replica, tree
from taskd.state.record import Record

_CARRIED = struct.Struct("<I")
"""How many loops, and pieces of work between loops, the giver has entered. The kind of its gradients follows."""
_MEETING = 0x7461736B64766172
"""The first number that a rank sends in `everyone`, to show that it is there."""


@dataclass(slots=True, frozen=True)
class Circle:
    """The ranks that take part: this `rank`, all `newcomers`, and the `parts` of the model that ranks have, by rank."""

    rank: int
    newcomers: set[int]
    parts: list[int]

    @property
    def alike(self) -> list[int]:
        """The ranks that have the same part as this rank."""
        return self.having(self.parts[self.rank])

    def having(self, part: int) -> list[int]:
        """Return the ranks that have this part."""
        return [rank for rank, one in enumerate(self.parts) if one == part]


def restore(
    order: Order, rank: int, loop: Any, inherited: Record | None, alone: Callable[[int], AbstractContextManager[None]]
) -> None:
    """Bring this rank to the common state. `inherited`: for a newcomer, the record of the process that it replaces;
    `alone(epoch)`: a context in which collectives stay local."""
    # An order names only the seats of this rank's node, so each rank tells the others whether it is new.
    circle = _begin(loop.refusal(order.updates), rank, any(seat.rank == rank for seat in order.seats), loop.part)
    _compare(manifest.describe(loop.replica, guard.groups()), circle, all_alike=loop.replica.kept)
    if not circle.newcomers:
        loop.all_try(order.updates)
    _settle(order.epoch, loop, alone, circle)
    found = inherited.find(order.updates) if inherited is not None else None
    _replicas(order.updates, loop, local.origin_of(found[1]) if found is not None else loop.origin, circle)
    peers = [fetch.rank for fetch in order.fetches if fetch.source == rank != fetch.rank]
    carried: tuple[int, bytes, dict[str, torch.Tensor]] = 0, b"", {}
    source = next((fetch.source for fetch in order.fetches if fetch.rank == rank), None)
    leader = _leader(order.updates, loop, source == rank)
    has_all = True
    if source == rank:
        loop.let_go()
        has_all = loop.keeping.bring(order.updates)
    elif peers or rank == leader:
        # It must give the state with which it goes on: the step that was given up has moved schedulers and counters.
        loop.return_to(order.updates)
    if leader is not None:
        places, kind = _share(order.updates, loop, rank, leader, lacks=not has_all)
        carried = places, kind, {}
    if source is not None and source != rank:
        loop.let_go()
        extra, gradients = replica.take(loop.replica, source)
        carried = *_CARRIED.unpack_from(extra), extra[_CARRIED.size :], gradients
    elif peers:
        places, kind, gradients = loop.carried()
        replica.give(loop.replica, peers, _CARRIED.pack(places) + kind, gradients)
    if source is None and (peers or rank == leader):
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
    loop.take_over(order.updates, *found, inherited.contents())
    loop.carry(*carried)


def _leader(updates: int, loop: Any, itself: bool) -> int | None:
    """If any rank brings itself to the agreed update, from what was kept of it: return the rank that tells it what all
    ranks have alike."""
    rows = _gather([itself, loop.held() == updates])
    if not any(row[0] for row in rows):
        return None
    found = next((rank for rank, row in enumerate(rows) if row[1] and not row[0]), None)
    if found is None:
        raise PeerError(f"no rank has what all ranks have alike after {updates} updates")
    return found


def _share(updates: int, loop: Any, rank: int, leader: int, lacks: bool) -> tuple[int, bytes]:
    """Let the leader tell what all ranks have alike to those that have brought themselves to the update and lack that.
    They must have had it alike before the update, as far as was kept. Return what the leader has `carried`, without its
    gradients, which are its own. Raises UsageError."""
    rows = _gather([lacks, loop.keeping.word(updates - 1) if lacks or rank == leader else -1])
    for other, row in enumerate(rows):
        if row[0] and row[1] != rows[leader][1]:
            raise UsageError(
                f"what is registered besides models is not the same on ranks {leader} and {other}, and nobody has kept "
                f"what rank {other} had of it after {updates} updates"
            )
    told = b""
    if rank == leader:
        told = b"".join(tree.pack([*loop.carried()[:2], kept_shards.common(loop.replica)]))
    places, kind, common = tree.unpack(everyone(told)[leader])
    if lacks:
        kept_shards.take_common(loop.replica, common)
    return places, kind


def everyone(mine: bytes) -> list[bytes]:
    """Return what each rank says here, by rank. All ranks must come here, and must not communicate in another way
    meanwhile. Raises PeerError if they do, as far as that can be seen."""
    rows = _gather([_MEETING, len(mine)])
    longest = max(row[1] for row in rows)
    if any(row[0] != _MEETING or not 0 <= row[1] <= tree.MAX_BYTES for row in rows):
        raise PeerError("ranks do not meet where a step begins after a repair: do they communicate between two steps?")
    padded = torch.frombuffer(bytearray(mine.ljust(longest, b"\0") or b"\0"), dtype=torch.uint8)
    return [bytes(text.tolist())[: row[1]] for text, row in zip(_all(padded), rows, strict=True)]


def _gather(values: list[int]) -> list[list[int]]:
    """Return every rank's row of numbers."""
    return [row.tolist() for row in _all(torch.tensor(values, dtype=torch.int64, device="cpu"))]


def _rows(values: list[int]) -> list[list[int]]:
    """Return every rank's numbers. Ranks may have different numbers of them."""
    longest = max(row[0] for row in _gather([len(values)]))
    rows = _gather([len(values), *values, *[0] * (longest - len(values))])
    return [row[1 : 1 + row[0]] for row in rows]


def _all(mine: torch.Tensor) -> list[torch.Tensor]:
    everyone = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    ours.all_gather(everyone, mine)
    return everyone


def _begin(refusal: str, rank: int, newcomer: bool, part: int) -> Circle:
    """Return the ranks that take part. A rank may know why this repair would go wrong: then every rank raises
    UsageError with that rank's words."""
    text = refusal.encode()
    rows = _gather([len(text), newcomer, part])
    longest = max(row[0] for row in rows)
    if not longest:
        return Circle(rank, {other for other, row in enumerate(rows) if row[1]}, [row[2] for row in rows])
    padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
    theirs = [bytes(row.tolist()).decode().strip() for row in _all(padded)]
    raise UsageError(next(filter(None, theirs)))


def _compare(own: manifest.Manifest, circle: Circle, all_alike: bool = False) -> None:
    """Check that all ranks have set up the same, and that ranks with the same part of the model agree on all of it, or
    `all_alike` do: each has other shards of the same tensors.

    A newcomer that differs raises Misfit and ends. The others raise StepAbandoned, and the newcomer's end starts the
    next epoch. If ranks differ that have trained together, every rank raises UsageError with the first difference.
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
    for ranks in [[*range(len(theirs))]] if all_alike else map(circle.having, {*circle.parts}):
        _differences(theirs, ranks, newcomers, differences)
    for other in [at for at in range(len(theirs)) if at not in newcomers] or [*range(len(theirs))]:
        if other in differences:
            raise UsageError(differences[other])
    if rank in differences:
        raise Misfit(differences[rank])
    if differences:
        raise StepAbandoned("a newcomer is not set up like the others, and ends")


def _differences(theirs: list[manifest.Manifest], ranks: list[int], newcomers: set[int], found: dict[int, str]) -> None:
    """Put a sentence into `found` for each of these ranks that is not set up like most of them."""
    old = [rank for rank in ranks if rank not in newcomers] or ranks
    bare = {rank: manifest.digest(theirs[rank], groups=False) for rank in ranks}
    usual = max(old, key=lambda rank: ([*bare.values()].count(bare[rank]), -rank))
    for other in ranks:
        if sentence := manifest.difference(theirs[usual], theirs[other], usual, other):
            found[other] = sentence


def _replicas(updates: int, loop: Any, origin: int, circle: Circle) -> None:
    """Check that ranks with the same part of the model are replicas: all began with the same contents, and all that
    have the agreed update hold the same. Otherwise no rank's state can replace another's. Raises UsageError."""
    rows = _gather([origin, loop.held(), manifest.contents(loop.replica)])
    began = {rank: rows[rank][0] for rank in circle.alike if rows[rank][0] >= 0}
    hold = {rank: rows[rank][2] for rank in circle.alike if rows[rank][1] == updates}
    for found, words in ((began, "have begun with"), (hold, f"hold after the same {updates} updates")):
        first = min(found, default=0)
        other = next((rank for rank in found if found[rank] != found[first]), None)
        if other is not None:
            raise UsageError(
                f"different parameters or settings are what ranks {first} and {other} {words}: they do not train "
                "replicas of one model, so no rank's state can replace another's"
            )


def _settle(epoch: int, loop: Any, alone: Callable[[int], AbstractContextManager[None]], circle: Circle) -> None:
    """Let ranks agree on where the finished loops have ended, and on the finished work between them. Ranks with the
    same part of the model also agree on the buckets that DDP has settled on, if any of them has."""
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
