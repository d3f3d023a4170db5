"""Inner groups for tensors on the CPU: which transport carries them, and what its errors speak of. See adapter.py.

Two can: rails (rail.py), which outlive cables, can be aborted and work on the caller's own memory; and gloo (gloo.py).
The setting worker.inner chooses, alike on all ranks, and nothing else does: a rank that cannot follow it is an error
for all of them, in one sentence (agreement.py). Each is loaded when it is first used.

Does not decide when a group is made or ended (guard.py, and csrc/c10d for the end).
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from datetime import timedelta
from typing import Any

from taskd.comm import cpu_settings, rail_engine
from taskd.comm.adapter import Fault, InnerGroup, Switch, Switched
from taskd.config import Config
from taskd.errors import UsageError

STREAM_ORDERED = False

NO_RAIL = "this process has no rail to choose, its groups run over gloo, whose connections are made once"

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


def prepare(environment: MutableMapping[str, str], settings: Config) -> dict[str, str]:
    """Nothing needs to be set."""
    return {}


def make_inner(
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
    """A group of these members that meet in `store`. torch gives no options for the CPU.

    Blocks until all ranks are connected. Raises BackendError if that cannot be done within `timeout`.
    """
    return _make(store, rank, timeout, epoch, identity, members, together=False)


def _make(
    store: Any, rank: int, timeout: timedelta, epoch: int, identity: str, members: Sequence[int], *, together: bool
) -> InnerGroup:
    """`together`: see rail.py."""
    hostname, interface = cpu_settings.place()
    if cpu_settings.current().worker.inner == "rail":
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
            together=together,
        )
    from taskd.comm import gloo

    return gloo.make_inner(store, rank, timeout, members=members, hostname=hostname, interface=interface)


def abort(guards: Sequence[Any], epoch: int, reason: str) -> None:
    """Ends what is left of older epochs' groups over rails; gloo's sockets are shut down when a guard lets go of it."""
    rail_engine.end_epochs_before(epoch)


def rebuild(guard: Any, store: Any, within: timedelta, *, epoch: int, options: Any = None) -> InnerGroup:
    """Another group: neither transport brings one back that was ended."""
    inner = _make(store, guard.rank(), within, epoch, guard.identity, guard.members, together=True)
    inner.backend._set_default_timeout(guard.timeout)
    return inner


def rails() -> Sequence[str]:
    """The rails of this process; none over gloo, and none before the first group."""
    return rail_engine.states()


def switch_rail(name: str, in_use: bool) -> Switched:
    """The engine takes it at once; the manager looks at the counters for what follows."""
    if not rails():
        return Switched(Switch.UNSUPPORTED, NO_RAIL)
    try:
        rail_engine.set_in_use(name, in_use)
    except (RuntimeError, ValueError, OSError, UsageError) as error:
        return Switched(Switch.REFUSED, f"{type(error).__name__}: {error}")
    return Switched(Switch.ASKED)


def probe(guard: Any) -> Fault | None:
    """Nothing to ask: on the CPU the operations themselves say what ails a group."""
    return None
