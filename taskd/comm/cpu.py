"""Inner groups for tensors on the CPU: which transport carries them, and what its errors speak of.

Two can: rails (rail.py), which outlive cables, can be aborted and work on the caller's own memory; and gloo (gloo.py).
The setting worker.inner chooses, alike on all ranks; each is loaded when it is first used.

Does not decide when a group is made or ended (guard.py, and csrc/c10d for the end).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any

from taskd import config


@dataclass
class InnerGroup:
    """A c10d backend, and descriptors of connected sockets that are its own where it cannot be aborted otherwise.

    Let go of it once a guard has it.
    """

    backend: Any
    sockets: list[int] = field(default_factory=list)


class Fault(Enum):
    """What an error of an inner group speaks of."""

    PEER_GONE = "peer gone"  # a connection ended: a process died, or its node, or a wire was cut hard
    SILENCE = "silence"  # nothing came in time: a hang, a dead node, a wire that swallows
    ARGUMENTS = "arguments"  # the ranks disagree about what they are doing
    OTHER = "other"


_PEER_GONE = (
    "connection reset",
    "connection closed",
    "broken pipe",
    "connection refused",
    "connection aborted",
    "closed by peer",
    "is lost:",
)
_SILENCE = ("timed out", "timeout", "no answer within")
_ARGUMENTS = (
    "preamble",
    "op.nbytes",
    "invalid tensor",
    "invalid argument",
    "mismatch",
    "requires",
    "must agree",
    "the same",
)


def classify(error: str | BaseException) -> Fault:
    """Sorts what an inner group said. Words are all there is to go by: torch has one exception for everything."""
    text = str(error).lower()
    if any(word in text for word in _PEER_GONE):
        return Fault.PEER_GONE
    if any(word in text for word in _SILENCE):
        return Fault.SILENCE
    if any(word in text for word in _ARGUMENTS):
        return Fault.ARGUMENTS
    return Fault.OTHER


_settings: config.Config | None = None


def configure(settings: config.Config) -> None:
    """These settings hold for the groups of this process from now on."""
    global _settings
    _settings = settings


def settings() -> config.Config:
    """What holds for the groups of this process: what was given, else what the environment says."""
    if _settings is None:
        configure(config.load())
    assert _settings is not None
    return _settings


def make_inner(
    store: Any,
    rank: int,
    size: int,
    timeout: timedelta,
    *,
    epoch: int,
    identity: str,
    members: Sequence[int],
    hostname: str | None = None,
    interface: str | None = None,
) -> InnerGroup:
    """A group of these members that meet in `store`, on this address or interface, else where the transport puts it.

    Blocks until all ranks are connected. Raises BackendError if that cannot be done within `timeout`.
    """
    if settings().worker.inner == "rail":
        from taskd.comm import rail

        return rail.make_inner(
            store,
            rank,
            timeout,
            epoch=epoch,
            identity=identity,
            members=members,
            hostname=hostname,
            interface=interface,
        )
    from taskd.comm import gloo

    return gloo.make_inner(store, rank, size, timeout, hostname=hostname, interface=interface)


def end_epochs_before(epoch: int) -> None:
    """Ends what is left of older epochs' groups, where the transport can."""
    rail: Any = sys.modules.get("taskd.comm.rail")
    if rail is not None:
        rail.end_epochs_before(epoch)
