"""The fields that messages are made of. Alone, since core/messages.py and core/rails/messages.py both use them.

Each has its bounds, which taskd.wire reads from here: a value outside of them is no message. They hold no behaviour;
the numbers and the reasons for them stand in `core/limits.py`.
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
"""Of the model: ranks of one part hold the same, and none of another can replace them. 0: every rank has all of it."""
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
