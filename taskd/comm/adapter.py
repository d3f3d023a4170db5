"""What every transport of inner groups offers, whatever device it serves: a few methods, no policy.

cpu.py (rails and gloo), nccl.py and hccl.py are such adapters, as modules. Who decides that a group is made anew, that
a rail carries nothing or that a step is done again sits elsewhere; here is only how each of them is asked for, and an
honest word about what came of it. A switch that reports success is believed when bytes have moved, not before.

`of` is the one place where a group's adapter is chosen, by torch's name of its backend. Each is loaded when it is first
asked for, and none of them imports torch before it makes a group. It decides nothing.
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
"""Bytes that each rail has carried, by its name; counters only grow."""

PROOF_BYTES = 1 << 20
"""The others have to carry so much before a rail that carries nothing proves anything."""

HOMES = {"gloo": "taskd.comm.cpu", "nccl": "taskd.comm.nccl", "hccl": "taskd.comm.hccl"}
"""Where the adapter of each backend lives, by torch's name of the backend."""
CPU = "gloo"
"""What torch calls the backend for the CPU, whatever carries it here."""
_asked: set[str] = set()


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
    words: str = ""  # empty: there is no more to say
    proof: Callable[[], Switched] | None = None  # of what was `asked`: what bytes say about it by now


class Adapter(Protocol):
    """A transport of inner groups. Stream-ordered ones repair no operation: after an error the step is done again."""

    STREAM_ORDERED: bool

    def prepare(self, environment: MutableMapping[str, str], settings: Config) -> dict[str, str]:
        """Set what has to stand in the environment before the first group; gives what was changed."""

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
        """A group of these members that meet in `store`; `options` are torch's for this group. Raises BackendError."""

    def abort(self, guards: Sequence[Any], epoch: int, reason: str) -> None:
        """End what is under way in the inner groups of these guards, for `epoch` begins. Raises BackendError."""

    def rebuild(self, guard: Any, store: Any, within: timedelta, *, epoch: int, options: Any = None) -> InnerGroup:
        """What takes the place of an aborted group in this epoch: another one, or the same one anew. Raises
        BackendError."""

    def rails(self) -> Sequence[str]:
        """The names of this process' rails that can be chosen; none where there is no choice."""

    def switch_rail(self, name: str, in_use: bool) -> Switched:
        """Ask that a rail carries nothing, or may carry again; the answer's `proof` tells later whether it does."""

    def probe(self, guard: Any) -> Fault | None:
        """What ails this guard's inner group as far as it knows itself; None: nothing. Never blocks on a peer."""

    def classify(self, error: str | BaseException) -> Fault:
        """Sorts an error of this transport."""


def of(backend: str) -> Adapter:
    """The adapter of the groups that torch calls by this name. Raises UsageError for a name that there is not."""
    home = HOMES.get(backend)
    if home is None:
        raise UsageError(f"taskd guards no groups of backend {backend}; it knows {', '.join(HOMES)}.")
    _asked.add(backend)
    return cast(Adapter, importlib.import_module(home))


def loaded() -> list[Adapter]:
    """Those that this process has asked for, and the one for the CPU, which takes nothing to load."""
    return [of(backend) for backend in HOMES if backend == CPU or backend in _asked]


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
