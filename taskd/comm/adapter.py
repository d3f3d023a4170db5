"""What every transport of inner groups offers, whatever device it serves: a few methods, no policy.

cpu.py (rails and gloo), nccl.py and hccl.py are such adapters, as modules. Who decides that a group is made anew, that
a rail carries nothing or that a step is done again sits elsewhere; here is only how each of them is asked for, and an
honest word about what came of it. A switch that reports success is believed when bytes have moved, not before.

It does NOT import any of the transports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any, Protocol

from taskd.comm.cpu import Fault, InnerGroup

Traffic = Mapping[str, int]
"""Bytes that each rail has carried, by its name; counters only grow."""

PROOF_BYTES = 1 << 20
"""The others have to carry so much before a rail that carries nothing proves anything."""


class Switch(Enum):
    """What came of the wish that a rail carries, or carries nothing."""

    MOVED = "moved"  # bytes flow as they were asked to
    ASKED = "asked"  # the transport took it; nothing has been sent since that would prove it
    NO_OP = "no-op"  # the transport reported success, and bytes flow as before
    REFUSED = "refused"  # the transport said no
    UNSUPPORTED = "unsupported"  # it has no rail to choose while it lives


@dataclass(frozen=True)
class Switched:
    """The answer, and the sentence that goes with it."""

    outcome: Switch
    words: str = ""


class Adapter(Protocol):
    """A transport of inner groups. Stream-ordered ones repair no operation: after an error the step is done again."""

    STREAM_ORDERED: bool

    def make_inner(
        self,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        epoch: int,
        identity: str,
        members: Sequence[int],
    ) -> InnerGroup:
        """A group of these members that meet in `store`. Raises BackendError."""

    def abort(self, backends: Sequence[Any], reason: str) -> None:
        """End what is under way in these groups; none of them is used again but to be rebuilt."""

    def rebuild(
        self,
        backend: Any,
        store: Any,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        epoch: int,
        identity: str,
        members: Sequence[int],
    ) -> InnerGroup:
        """What takes the place of an aborted group in this epoch: another one, or the same one anew."""

    def switch_rail(self, backend: Any, name: str, in_use: bool) -> Switched:
        """Ask that a rail carries nothing, or may carry again; `judge` tells later whether it was followed."""

    def probe(self, backend: Any) -> Fault | None:
        """What ails this group as far as it knows itself; None: nothing. Never blocks on a peer."""

    def classify(self, error: str | BaseException) -> Fault:
        """Sorts an error of this transport."""


def judge(name: str, in_use: bool, before: Traffic, after: Traffic) -> Switched:
    """Whether a switch was followed, by what the rails have carried since: the transport's own report is no proof."""
    moved = after.get(name, 0) - before.get(name, 0)
    others = sum(max(count - before.get(rail, 0), 0) for rail, count in after.items() if rail != name)
    if in_use:
        if moved > 0:
            return Switched(Switch.MOVED, f"rail {name} has carried {moved} bytes")
        if others >= PROOF_BYTES:
            return Switched(Switch.NO_OP, f"others have carried {others} bytes, rail {name} none")
    else:
        if moved >= PROOF_BYTES:
            return Switched(Switch.NO_OP, f"rail {name} still carries: {moved} bytes")
        if others >= PROOF_BYTES:
            return Switched(Switch.MOVED, f"others have carried {others} bytes, rail {name} {moved}")
    return Switched(Switch.ASKED, "hardly anything has been sent since")
