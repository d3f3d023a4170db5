"""Copies of data that otherwise only ranks of other nodes have: their last local records and their set-up records.

A lost node takes its agent's memory with it. So the data that a newcomer on another node needs is kept here. These are
the two slots of the dead rank's local record, which the rank itself sent at every step (keeper_door.py). And these are
the pieces of its set-up record. A piece is known by its digest, and is kept once even if many ranks have it. All of it
is in memory only. When this node is lost, the set-ups are sent to another node again, and so are the slots of the next
step.

Failure modes: a copy that is behind the record (the newcomer then finds no slot for the agreed update and says so); a
late message of a replaced life (its incarnation is older: counted, nothing changes); a new start of all ranks (a new
lineage: nothing of the old one is kept); no room (said in the answer).
Invariant: the slots of a rank belong to one lineage and to no older incarnation than the set-up's.
It does NOT know sockets, the core or what the bytes mean.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field

from taskd import log
from taskd.backup.copy_frame import Frame
from taskd.core import limits
from taskd.core.messages import (
    AboutRecords,
    RecordsAnswer,
    RecordsAsk,
    RecordSlot,
    SetupOffer,
    SetupPiece,
    SetupWanted,
)

_logger = log.get(__name__)
Reply = SetupWanted | RecordsAnswer | SetupPiece


@dataclass
class _Slot:
    """One slot, and its pieces by digest. The pieces are cut only when the slot is asked for."""

    step: int
    data: bytes
    pieces: dict[bytes, bytes] = field(default_factory=dict)
    order: tuple[bytes, ...] = ()

    def cut(self) -> tuple[bytes, ...]:
        """The digests of its pieces, in order."""
        if self.data and not self.order:
            found = [self.data[at : at + limits.SETUP_PIECE] for at in range(0, len(self.data), limits.SETUP_PIECE)]
            self.order = tuple(hashlib.sha256(piece).digest() for piece in found)
            self.pieces = dict(zip(self.order, found, strict=True))
        return self.order


@dataclass
class _Rank:
    """What is kept for one rank."""

    incarnation: int
    lineage: int
    slots: dict[int, _Slot] = field(default_factory=dict)
    last: int = -1  # the slot that arrived last; -1: it could not be kept
    length: int = 0
    digests: tuple[bytes, ...] = ()
    said: int = 0  # the incarnation whose records were announced as complete


@dataclass
class _Piece:
    """A piece of a set-up: `data` None while it is only wanted."""

    users: int = 0
    data: bytes | None = None


class Records:
    """All copies on this node: `take` keeps a slot, `hear` handles an agent's message and returns the answers."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self.late = 0
        """How many messages came from lives that had been replaced."""
        self._ranks: dict[int, _Rank] = {}
        self._pieces: dict[bytes, _Piece] = {}

    def hear(self, message: AboutRecords) -> list[Reply]:
        """Handle one message of an agent."""
        if isinstance(message, SetupOffer):
            return [self._offered(message)]
        if isinstance(message, SetupPiece):
            self._piece(message.data)
            return []
        if isinstance(message, RecordsAsk):
            return [self._answer(message.rank)]
        found = [self._find(message.rank, digest) for digest in message.digests[: limits.SETUP_PIECES_AT_ONCE]]
        return [SetupPiece(data) for data in found if data is not None]

    def take(self, frame: Frame) -> None:
        """Keep a slot in place of its earlier version."""
        kept = self._of(frame.rank, frame.incarnation, frame.lineage)
        if kept is None:
            return
        before, kept.last = kept.slots.get(kept.last), -1
        old = kept.slots.pop(frame.slot, None)
        self.size_bytes -= len(old.data) if old is not None else 0
        data = before.data if frame.same and before is not None else frame.data
        if (frame.same and before is None) or not self._room(len(data)):
            return  # the old slot is gone, too: it must not stand beside a newer one
        self.size_bytes += len(data)
        kept.slots[frame.slot] = _Slot(frame.step, data)
        kept.last = frame.slot
        self._announce(frame.rank)

    # ---- keeping ----------------------------------------------------------------------------------------------

    def _of(self, rank: int, incarnation: int, lineage: int) -> _Rank | None:
        """The entry in which to keep this; None if it comes from a life that has been replaced."""
        known = self._ranks.get(rank)
        if known is not None and incarnation < known.incarnation:
            self.late += 1
            return None
        if known is None or known.lineage != lineage:
            if known is not None:
                self._forget(known)
            known = self._ranks[rank] = _Rank(incarnation, lineage)
        known.incarnation = incarnation
        return known

    def _forget(self, known: _Rank) -> None:
        self.size_bytes -= sum(len(slot.data) for slot in known.slots.values())
        self._release(known.digests)

    def _offered(self, offer: SetupOffer) -> SetupWanted:
        kept = self._of(offer.rank, offer.incarnation, offer.lineage)
        if kept is None:
            return SetupWanted(offer.rank, offer.lineage, True, ())
        if kept.digests != offer.digests:
            for digest in offer.digests:
                self._pieces.setdefault(digest, _Piece()).users += 1
            self._release(kept.digests)
            kept.digests, kept.length = offer.digests, offer.length
        missing = [digest for digest in dict.fromkeys(kept.digests) if self._pieces[digest].data is None]
        self._announce(offer.rank)
        room = not missing or self._room(len(missing) * limits.SETUP_PIECE)
        return SetupWanted(offer.rank, offer.lineage, room, tuple(missing[: limits.SETUP_PIECES_AT_ONCE * room]))

    def _piece(self, data: bytes) -> None:
        piece = self._pieces.get(hashlib.sha256(data).digest())
        if piece is not None and piece.data is None:  # a piece that no agent has offered is not kept
            piece.data = data
            self.size_bytes += len(data)

    def _release(self, digests: tuple[bytes, ...]) -> None:
        for digest in digests:
            piece = self._pieces[digest]
            piece.users -= 1
            if not piece.users:
                self.size_bytes -= len(piece.data or b"")
                del self._pieces[digest]

    def _room(self, growth: int) -> bool:
        if self.size_bytes + growth <= limits.MAX_COPIES_BYTES:
            return True
        text = "the records of all ranks together exceed the %d MiB that are kept for the loss of a node"
        log.once(_logger, logging.WARNING, "copies-full", text, limits.MAX_COPIES_BYTES >> 20)
        return False

    def _announce(self, rank: int) -> None:
        """Log once for each life of the rank that its records are complete here."""
        kept = self._ranks[rank]
        if kept.said != kept.incarnation and not self._lacks(rank):
            kept.said = kept.incarnation
            text = "rank %d (incarnation %d) may lose its node: its records have copies here"
            _logger.info(text, rank, kept.incarnation)

    def _lacks(self, rank: int) -> str:
        """Why a newcomer of this rank could not start from these copies; empty if it could."""
        kept = self._ranks.get(rank)
        if kept is None:
            return f"no other node was sent records of rank {rank}"
        if not kept.slots:
            return f"no other node has a local record of rank {rank}"
        if not kept.digests or any(self._pieces[digest].data is None for digest in kept.digests):
            return f"the record of rank {rank}'s set-up has not reached another node as a whole"
        return ""

    # ---- giving -----------------------------------------------------------------------------------------------

    def _answer(self, rank: int) -> RecordsAnswer:
        kept, reason = self._ranks.get(rank), self._lacks(rank)
        if kept is None or reason:
            return RecordsAnswer(rank, 0, 0, (), (), 0, (), reason)
        slots = tuple(RecordSlot(number, slot.step, len(slot.data)) for number, slot in kept.slots.items())
        pieces = tuple(digest for slot in kept.slots.values() for digest in slot.cut())
        return RecordsAnswer(rank, kept.incarnation, kept.lineage, slots, pieces, kept.length, kept.digests, "")

    def _find(self, rank: int, digest: bytes) -> bytes | None:
        """A piece of a set-up, or of a slot of this rank."""
        piece = self._pieces.get(digest)
        if piece is not None:
            return piece.data
        slots = self._ranks[rank].slots.values() if rank in self._ranks else ()
        return next((slot.pieces[digest] for slot in slots if digest in slot.pieces), None)
