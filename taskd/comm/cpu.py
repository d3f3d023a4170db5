"""Inner groups for tensors on the CPU: which transport carries them, and what its errors mean. See adapter.py.

There are two transports: rails (rail.py) and gloo (gloo.py). Rails survive broken cables, can be aborted and work on
the caller's own memory. Only the setting worker.inner chooses, and it is the same on all ranks. A rank that cannot
follow it is an error for all of them, in one sentence (agreement.py). Each transport is loaded on first use.

This module does not decide when a group is made or ended (guard.py, and csrc/c10d for the end).
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
    """Sort the error of an inner group by its words: torch has one exception type for everything."""
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
    """Make a group of these members that meet in `store`. torch gives no options for the CPU.

    Blocks until all ranks are connected. Raises BackendError if that cannot be done within `timeout`.
    """
    return _make(store, rank, timeout, epoch, identity, members, together=False)


def _make(
    store: Any, rank: int, timeout: timedelta, epoch: int, identity: str, members: Sequence[int], *, together: bool
) -> InnerGroup:
    """Make a group over the transport that is set. `together`: see rail.py."""
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
    """End the rail groups of older epochs. The sockets of a gloo group are shut down when its guard drops it."""
    rail_engine.end_epochs_before(epoch)


def rebuild(guard: Any, store: Any, within: timedelta, *, epoch: int, options: Any = None) -> InnerGroup:
    """Make another group: neither transport can revive a group that was ended."""
    inner = _make(store, guard.rank(), within, epoch, guard.identity, guard.members, together=True)
    inner.backend._set_default_timeout(guard.timeout)
    return inner


def rails() -> Sequence[str]:
    """The rails of this process; empty over gloo, and empty before the first group."""
    return rail_engine.states()


def switch_rail(name: str, in_use: bool) -> Switched:
    """Tell the engine, which accepts it at once. The manager sees the effect in the counters."""
    if not rails():
        return Switched(Switch.UNSUPPORTED, NO_RAIL)
    try:
        rail_engine.set_in_use(name, in_use)
    except (RuntimeError, ValueError, OSError, UsageError) as error:
        return Switched(Switch.REFUSED, f"{type(error).__name__}: {error}")
    return Switched(Switch.ASKED)


def probe(guard: Any) -> Fault | None:
    """Return None: on the CPU the operations themselves report what is wrong with a group."""
    return None
