"""The interface of every transport of inner groups, whatever device it serves: a few methods, no policy.

cpu.py (rails and gloo), nccl.py and hccl.py are such adapters, as modules. Other modules decide that a group is made
anew, that a rail carries nothing or that a step is done again. An adapter carries out the request and reports honestly
what came of it. A switch that reports success is believed only after bytes have moved.

`of` is the one place that chooses a group's adapter, by torch's name of its backend. Each adapter is loaded on first
use, and none of them imports torch before it makes a group. This module decides nothing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, Protocol, cast

from taskd.config import Config
from taskd.errors import UsageError

Traffic = Mapping[str, int]
"""Bytes that each rail has carried, by the rail's name. The counters only grow."""

PROOF_BYTES = 1 << 20
"""The other rails must carry this many bytes before a rail that carries none proves anything."""

HOMES = {"gloo": "taskd.comm.cpu", "nccl": "taskd.comm.nccl", "hccl": "taskd.comm.hccl"}
"""Where the adapter of each backend lives, by torch's name of the backend."""
CPU = "gloo"
"""What torch calls the backend for the CPU, whatever carries it here."""
_asked: set[str] = set()


@dataclass
class InnerGroup:
    """A c10d backend, and the descriptors of its connected sockets where it cannot be aborted in another way.

    Keep no reference to it after a guard has taken it.
    """

    backend: Any
    sockets: list[int] = field(default_factory=list)


class Fault(Enum):
    """The kind of trouble that an error of an inner group reports."""

    PEER_GONE = "peer gone"  # a connection ended: a process or its node died, or a link was cut
    SILENCE = "silence"  # nothing came in time: a hang, a dead node, a link that drops everything
    ARGUMENTS = "arguments"  # the ranks disagree about what they are doing
    OTHER = "other"


class Switch(Enum):
    """The outcome of a request that a rail carries traffic, or carries none."""

    MOVED = "moved"  # bytes flow as requested
    ASKED = "asked"  # the transport accepted it; too little has been sent since to prove it
    NO_OP = "no-op"  # the transport reported success, and bytes flow as before
    REFUSED = "refused"  # the transport said no
    UNSUPPORTED = "unsupported"  # a living process cannot choose its rails with this transport


@dataclass(frozen=True)
class Switched:
    """The outcome of a switch, and a sentence about it."""

    outcome: Switch
    words: str = ""  # empty: there is no more to say
    proof: Callable[[], Switched] | None = None  # of an `asked` switch: what the bytes show about it by now


class Adapter(Protocol):
    """A transport of inner groups. A stream-ordered one repairs no operation: after an error the step is done again."""

    STREAM_ORDERED: bool

    def prepare(self, environment: MutableMapping[str, str], settings: Config) -> dict[str, str]:
        """Set the environment variables that the first group needs; return the changed ones."""

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
        options: Any = None,
    ) -> InnerGroup:
        """Make a group of these members that meet in `store`; `options` are torch's for it. Raises BackendError."""

    def abort(self, guards: Sequence[Any], epoch: int, reason: str) -> None:
        """End the operations in the inner groups of these guards, because `epoch` begins. Raises BackendError."""

    def rebuild(self, guard: Any, store: Any, within: timedelta, *, epoch: int, options: Any = None) -> InnerGroup:
        """Return the replacement of an aborted group in this epoch: another group, or the same one anew. Raises
        BackendError."""

    def rails(self) -> Sequence[str]:
        """The names of this process' rails that can be chosen; empty where there is no choice."""

    def switch_rail(self, name: str, in_use: bool) -> Switched:
        """Ask that a rail carries nothing, or may carry again; the answer's `proof` tells later whether this worked."""

    def probe(self, guard: Any) -> Fault | None:
        """The fault that this guard's inner group knows of itself; None: no fault. Never blocks on a peer."""

    def classify(self, error: str | BaseException) -> Fault:
        """Sort an error of this transport into one of the faults."""


def of(backend: str) -> Adapter:
    """Return the adapter for this name of a torch backend. Raises UsageError for an unknown name."""
    home = HOMES.get(backend)
    if home is None:
        raise UsageError(f"taskd guards no groups of backend {backend}; it knows {', '.join(HOMES)}.")
    _asked.add(backend)
    return cast(Adapter, importlib.import_module(home))


def loaded() -> list[Adapter]:
    """The adapters that this process has asked for, and the one for the CPU, which costs nothing to load."""
    return [of(backend) for backend in HOMES if backend == CPU or backend in _asked]


def judge(name: str, in_use: bool, before: Traffic, after: Traffic) -> Switched:
    """Judge by the bytes carried since whether a switch took effect: the transport's own report is no proof."""
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
