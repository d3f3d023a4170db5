"""The field types of messages. A module of its own: core/messages.py and core/rails/messages.py both use them.

Each type has its bounds, which taskd.wire reads from here. A message with a value outside its bounds is refused. The
types have no behaviour. The numbers and the reasons for them are in `core/limits.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from taskd.core import limits


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of an integer, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True)
class AtMost:
    """The most characters, bytes or items that a field may hold."""

    count: int


RankId = Annotated[int, Between(0, limits.MAX_RANKS - 1)]
Incarnation = Annotated[int, Between(0, limits.MAX_INCARNATION)]
Epoch = Annotated[int, Between(0, limits.MAX_EPOCH)]
Step = Annotated[int, Between(-1, limits.MAX_STEP)]
Count = Annotated[int, Between(0, 2**63 - 1)]
Part = Annotated[int, Between(0, limits.MAX_RANKS)]
"""A part of the model. Ranks of one part hold the same, and ranks of another cannot replace them. 0: every rank holds
the whole model."""
Small = Annotated[int, Between(0, limits.MAX_NODES)]
Pid = Annotated[int, Between(0, limits.MAX_PID)]
ExitCode = Annotated[int, Between(-255, 255)]
Name = Annotated[str, AtMost(limits.MAX_NAME)]
Text = Annotated[str, AtMost(limits.MAX_TEXT)]
StoreItem = Annotated[bytes, AtMost(limits.MAX_STORE_VALUE)]
Digests = Annotated[tuple[Annotated[bytes, AtMost(limits.DIGEST_BYTES)], ...], AtMost(limits.MAX_SETUP_PIECES)]
SlotDigests = Annotated[tuple[Annotated[bytes, AtMost(limits.DIGEST_BYTES)], ...], AtMost(limits.MAX_COPY_PIECES)]
Signed = Annotated[int, Between(-(2**63), 2**63 - 1)]
Ranks = Annotated[tuple[RankId, ...], AtMost(limits.MAX_RANKS)]
RailName = Annotated[str, AtMost(limits.MAX_RAIL_NAME)]
