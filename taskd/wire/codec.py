"""Messages as bytes: one msgpack array per message, every bound checked on the way out and on the way in.

`encode(message, envelope)` makes `[VERSION, number of the message's class, job, node, life, sequence, field...]`.
`decode(data)` turns any bytes into (Envelope, message) or into one WireError. It never raises, because bytes from a
socket are not trusted. The code for each class is generated once, at import, from the annotations in
taskd.core.messages (taskd.wire.compile). So the bounds are in one place, and a Report of 64 ranks is read in about
a hundred microseconds. The same bytes travel between worker and agent and between agent and manager, and are written
to the manager's journal.

This module does NOT know sockets, keys or who may say what. It does not repair, convert or default anything: a message
fits or it is refused. Extension types, maps and floating-point numbers do not exist in this format.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from taskd.core import limits
from taskd.core.messages import (
    MESSAGES,
    AgentHello,
    Answer,
    CountersShown,
    Covered,
    DeviceReport,
    Evidence,
    Goodbye,
    Order,
    PauseAnswer,
    PauseAnswers,
    PauseOrder,
    Proof,
    Proofs,
    Question,
    RailOrder,
    RailsFollowed,
    RanksEnded,
    RecordsAnswer,
    RecordsAsk,
    Reply,
    Report,
    SetupOffer,
    SetupPiece,
    SetupWanted,
    StackAsked,
    StackTold,
    StageReached,
    Stillness,
    Stop,
    StoreAnswer,
    StoreAsk,
    Unmended,
    WorkerHello,
    WorkerLeaving,
    WorkerWelcome,
)
from taskd.core.words import cut
from taskd.wire import older
from taskd.wire.compile import Refusal, compile_class, shown

VERSION = 17
"""Increased whenever a message changes. Two sides of different versions refuse each other with one sentence."""
MAX_LIFE = 2**63 - 1
HEAD = 6
"""The number of array items before a message's own fields."""

Message = (
    WorkerHello
    | WorkerWelcome
    | StageReached
    | Evidence
    | WorkerLeaving
    | AgentHello
    | Report
    | Goodbye
    | Answer
    | Order
    | Stop
    | Question
    | Reply
    | StoreAsk
    | StoreAnswer
    | SetupOffer
    | SetupWanted
    | SetupPiece
    | RecordsAsk
    | RecordsAnswer
    | RailsFollowed
    | RailOrder
    | CountersShown
    | Proof
    | Proofs
    | Unmended
    | Stillness
    | Covered
    | StackAsked
    | StackTold
    | DeviceReport
    | RanksEnded
    | PauseOrder
    | PauseAnswer
    | PauseAnswers
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The sender: job, node's name (empty: an operator), one life of its process, the message's number in this life."""

    job: str
    node: str
    life: int
    sequence: int


@dataclass(frozen=True, slots=True)
class WireError:
    """Why some bytes are not a message. `kind` is one word for a counter, `reason` one sentence for a log."""

    kind: str  # garbage, oversized, version, unknown, bounds
    reason: str


_CLASSES = [compile_class(cls) for cls in MESSAGES]
_NUMBERS = {cls: number for number, cls in enumerate(MESSAGES)}


@dataclass(frozen=True, slots=True)
class Body:
    """A message without its envelope, for a message that has many receivers."""

    number: int
    count: int
    data: memoryview


def encode(message: Message, envelope: Envelope) -> bytes:
    """The bytes of one message. A value out of bounds is our own bug and asserts; cut texts with `cut` before."""
    return seal(body_of(message), envelope)


def body_of(message: Message) -> Body:
    """The packed fields of a message; seal them once for each receiver."""
    number = _NUMBERS[type(message)]
    row = _CLASSES[number].to_row(message)
    return Body(number, len(row), _items(row))


def seal(body: Body, envelope: Envelope) -> bytes:
    """The bytes of a message with this body and this envelope."""
    assert len(envelope.job) <= limits.MAX_NAME and len(envelope.node) <= limits.MAX_NAME, envelope
    assert 0 <= envelope.life <= MAX_LIFE and 0 <= envelope.sequence <= MAX_LIFE, envelope
    head = _items([VERSION, body.number, envelope.job, envelope.node, envelope.life, envelope.sequence])
    data = b"".join((_array(HEAD + body.count), head, body.data))
    assert len(data) <= limits.MAX_MESSAGE_BYTES, f"a {MESSAGES[body.number].__name__} of {len(data)} bytes"
    return data


def _items(row: list[Any]) -> memoryview:
    """The items of a packed array, without the array's header. A large value is not copied for this."""
    # "replace": a lone surrogate in a user's file name or exception must not cost the message.
    packed: bytes = msgpack.packb(row, use_bin_type=True, unicode_errors="replace")
    return memoryview(packed)[len(_array(len(row))) :]


def _array(count: int) -> bytes:
    """The header that msgpack writes before this many array items. Our arrays have a few dozen items at most."""
    return bytes([0x90 | count]) if count < 16 else b"\xdc" + count.to_bytes(2, "big")


def decode(data: bytes | bytearray | memoryview, oldest: int = VERSION) -> tuple[Envelope, Message] | WireError:
    """The message in these bytes, or why there is none. Never raises. `oldest`: the oldest version that is accepted.
    Only a reader of journals accepts older versions than this one."""
    size = len(data)
    if size > limits.MAX_MESSAGE_BYTES:
        return WireError("oversized", f"{size} bytes are more than a message may have ({limits.MAX_MESSAGE_BYTES})")
    try:
        # Lists, not tuples: the unused places of a list are never touched, so a false length costs no memory. No
        # length can exceed the number of bytes, or the longest list in any message.
        row = msgpack.unpackb(
            data,
            raw=False,
            max_array_len=min(size, limits.MAX_RANKS),
            max_map_len=0,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, RecursionError, MemoryError, msgpack.UnpackException) as error:
        return WireError("garbage", f"{size} bytes are no message: {_why(error)}")
    if type(row) is not list or len(row) < HEAD or type(row[0]) is not int or type(row[1]) is not int:
        return WireError("garbage", f"{size} bytes are no message: they do not begin as one")
    version, number, job, node, life, sequence = row[:HEAD]
    if not oldest <= version <= VERSION:
        return WireError("version", f"the other side speaks version {shown(version)}, this side speaks {VERSION}")
    if not 0 <= number < len(_CLASSES):
        return WireError("unknown", f"message number {shown(number)} is unknown to version {VERSION}")
    for name, text in (("job", job), ("node", node)):
        if type(text) is not str or len(text) > limits.MAX_NAME:
            return WireError("bounds", f"the envelope's {name} is {shown(text)}: at most {limits.MAX_NAME} characters")
    for name, value in (("life", life), ("sequence", sequence)):
        if type(value) is not int or not 0 <= value <= MAX_LIFE:
            return WireError("bounds", f"the envelope's {name} is {shown(value)}: a number from 0 to 2**63-1")
    try:
        fields = row[HEAD:] if version == VERSION else older.renewed(version, MESSAGES[number], row[HEAD:], VERSION)
        message: Message = _CLASSES[number].from_row(fields)
    except Refusal as refusal:
        return WireError("bounds", refusal.sentence)
    return Envelope(job, node, life, sequence), message


def _why(error: BaseException) -> str:
    text: Any = str(error) or type(error).__name__
    return cut(f"{text}".splitlines()[0], 120)
