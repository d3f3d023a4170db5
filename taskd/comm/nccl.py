"""Inner groups over NCCL: how they are made, aborted and made anew. Errors are reported and never end the process.
See adapter.py.

NCCL is stream-ordered: a failed operation cannot be repeated alone, because the kernels behind it are queued already.
So the communicators are aborted and made anew under another epoch, and the step is done again.

Two things must be set before the first group (`prepare`). By default torch's watchdog ends the process at an error;
TORCH_NCCL_ASYNC_ERROR_HANDLING=0 leaves the error to us. The monitor that ends a process with a stuck watchdog is
switched off (docs/retry.md names the pages). NCCL's own fail-over between InfiniBand or RoCE ports of one GPU exists
since 2.29.7, and its way back since 2.30. Both are off by default and are switched on where the version has them.

Rail choice is `unsupported`: NCCL lists its interfaces once per process, so a living process cannot choose others.
This module does NOT decide anything, and it imports torch only when a group is made.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import MutableMapping, Sequence
from datetime import timedelta
from typing import Any

from taskd import log
from taskd.comm import sockets
from taskd.comm.adapter import Fault, InnerGroup, Switch, Switched
from taskd.config import Config
from taskd.errors import BackendError

STREAM_ORDERED = True

_logger = log.get(__name__)

PORT_FAILOVER_SINCE = (2, 29, 7)
PORT_RECOVERY_SINCE = (2, 30, 0)
PORT_FAILOVER = "NCCL_IB_RESILIENCY_PORT_FAILOVER"
PORT_RECOVERY = "NCCL_IB_RESILIENCY_PORT_RECOVERY"

WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # 1 and 3 end the process, 2 aborts behind our back
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",  # the manager tells the other ranks to stop
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
"""The variables that keep an error from ending the process."""

NO_RAIL = (
    "NCCL lists its network interfaces once per process: a living process cannot leave one of them; start it anew with "
    "NCCL_SOCKET_IFNAME or NCCL_IB_HCA"
)

_REMOTE = ("ncclremoteerror", "remote process exited", "connection closed by remote", "connection reset", "peer")
_SILENCE = ("timeout", "timed out", "watchdog caught")
_ARGUMENTS = ("ncclinvalidusage", "ncclinvalidargument", "invalid usage", "invalid argument", "mismatch")


USUAL_S = 1.0
"""An operation that NCCL takes longer to accept waits for its communicator to be made."""
BEGINNING_S = 10.0
"""How long an abort waits for operations that are just being handed to NCCL."""
_listened: dict[str, set[int]] = {}
"""The listening sockets of this process when a group was last made, by its identity."""
KEPT_OPTIONS = ("is_high_priority_stream", "config", "global_ranks_in_group", "group_name", "group_desc")
"""The options that a group made anew takes from its predecessor. It is never split from another group."""


def prepare(environment: MutableMapping[str, str], settings: Config) -> dict[str, str]:
    """Set what the first group needs, for the NCCL version that runs; return what was set.

    The watchdog's settings are always ours: with others an error would end the process. The ports' are only defaults.
    """
    wanted, runs = dict(WATCHDOG), version()
    for name, since in ((PORT_FAILOVER, PORT_FAILOVER_SINCE), (PORT_RECOVERY, PORT_RECOVERY_SINCE)):
        if runs >= since and name not in environment:
            wanted[name] = "1"
    changed = {name: value for name, value in wanted.items() if environment.get(name) != value}
    environment.update(changed)
    return changed


def version() -> tuple[int, int, int]:
    """The version of the NCCL that this torch runs with. Raises BackendError where there is none."""
    major, minor, patch = _class().get_runtime_nccl_version()
    return major, minor, patch


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
    """Make a group, whose first operation makes its communicators. Raises BackendError."""
    kind = _class()
    wanted = kind.Options()
    for name in KEPT_OPTIONS:
        if hasattr(options, name):
            setattr(wanted, name, getattr(options, name))
    wanted._timeout = timeout
    _listened[identity] = {one.inode for one in sockets.listeners()}
    try:
        backend = kind(store, rank, size, wanted)
    except (RuntimeError, ValueError) as error:
        who = ", ".join(map(str, members))
        raise BackendError(
            f"NCCL could not set up group {identity} of ranks {who} in epoch {epoch}: {error}; check that each of them "
            "has a GPU of its own."
        ) from error
    return InnerGroup(backend)


def abort(guards: Sequence[Any], epoch: int, reason: str) -> None:
    """Abort these groups together: one after the other, they could wait for each other. Raises BackendError.

    NCCL takes a second for each of them, whatever it does: its threads look for the end every half second.
    """
    backends = [inner for guard in guards if (inner := guard.inner) is not None]
    if not backends:
        return
    errors: list[RuntimeError] = []

    def end(backend: Any) -> None:
        try:
            backend.abort()
        except RuntimeError as error:
            errors.append(error)

    threads = [threading.Thread(target=end, args=(one,), name="taskd-abort", daemon=True) for one in backends]
    for thread in threads:
        thread.start()
    _end_beginnings(guards)
    for thread in threads:
        thread.join()
    if errors:
        raise BackendError(f"NCCL could not abort ({reason}): {errors[0]}; restart this rank.") from errors[0]


def _end_beginnings(guards: Sequence[Any]) -> None:
    """End communicators that are still being made, which an abort does not reach.

    NCCL waits for their other ranks on listening sockets of its own, without a limit. They are new since the group was
    made. If another thread has begun to listen since then, its socket is shut down, too: nothing tells them apart. So
    this is only done if an operation is not taken for a second after the step was given up.
    """
    begun = time.monotonic()
    while begins := [guard for guard in guards if guard.handing_over]:
        waited = time.monotonic() - begun
        if waited > BEGINNING_S:
            _logger.warning("NCCL does not take an operation of a step that is given up")
            return
        if waited > USUAL_S:
            but = set.union(*(_listened.get(guard.identity, set()) for guard in begins))
            with contextlib.suppress(OSError):  # no descriptor is left for a look at the others
                sockets.shut_listeners(but)
        time.sleep(0.01)  # NCCL tells nobody that it has begun to listen


def rebuild(guard: Any, store: Any, within: timedelta, *, epoch: int, options: Any = None) -> InnerGroup:
    """Make another group: an aborted one stays aborted. Nothing waits here, so `within` has no effect."""
    return make_inner(
        store,
        guard.rank(),
        guard.size(),
        guard.timeout,
        epoch=epoch,
        identity=guard.identity,
        members=guard.members,
        options=options,
    )


def rails() -> Sequence[str]:
    """Return nothing: no rail can be chosen."""
    return ()


def switch_rail(name: str, in_use: bool) -> Switched:
    """Answer `unsupported`: the rails of a living process cannot be chosen."""
    return Switched(Switch.UNSUPPORTED, NO_RAIL)


def probe(guard: Any) -> Fault | None:
    """The fault that the watchdog has noted for this group."""
    inner = guard.inner
    if inner is None:
        return None
    found = str(getattr(inner.get_error(), "name", "OTHER"))
    faults = {"SUCCESS": None, "TIMEOUT": Fault.SILENCE, "COMM_ERROR": Fault.PEER_GONE, "REMOTE_ERROR": Fault.PEER_GONE}
    return faults.get(found, Fault.OTHER)


def classify(error: str | BaseException) -> Fault:
    """Sort an error by its words; torch's texts contain NCCL's own names of its errors."""
    text = str(error).lower()
    if any(word in text for word in _ARGUMENTS):
        return Fault.ARGUMENTS
    if any(word in text for word in _SILENCE):
        return Fault.SILENCE
    if any(word in text for word in _REMOTE) or "ncclsystemerror" in text:
        return Fault.PEER_GONE
    return Fault.OTHER


def _class() -> Any:
    import torch.distributed as dist

    if not dist.is_nccl_available():
        raise BackendError("this torch was built without NCCL; install one with CUDA, or use the cpu backend.")
    return dist.ProcessGroupNCCL
