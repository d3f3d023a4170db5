"""Inner groups over NCCL: made, aborted and made anew; errors told, never fatal to the process.

NCCL is stream-ordered: an operation that failed cannot be done again by itself, since the kernels behind it have been
queued. So the communicators are aborted, made anew under another epoch, and the step is done again.

Two things have to be set before the first group (`prepare`). torch's watchdog ends the process at an error by default;
TORCH_NCCL_ASYNC_ERROR_HANDLING=0 leaves it to us, and the monitor that ends a process with a stuck watchdog is switched
off (docs/retry.md names the pages). NCCL's own fail-over between InfiniBand or RoCE ports of one GPU is there since
2.29.7 and its way back since 2.30, both off by default: they are switched on where the version has them.

Rail choice is `unsupported`: NCCL lists its interfaces once per process, so a living one cannot choose others.
It does NOT decide anything, and it imports torch only when a group is made.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from datetime import timedelta
from typing import Any

from taskd.comm.adapter import Switch, Switched
from taskd.comm.cpu import Fault, InnerGroup
from taskd.errors import BackendError

STREAM_ORDERED = True

PORT_FAILOVER_SINCE = (2, 29, 7)
PORT_RECOVERY_SINCE = (2, 30, 0)
PORT_FAILOVER = "NCCL_IB_RESILIENCY_PORT_FAILOVER"
PORT_RECOVERY = "NCCL_IB_RESILIENCY_PORT_RECOVERY"

WATCHDOG = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # 1 and 3 end the process, 2 aborts behind our back
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",  # who else has to stop is told by the manager
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
"""What keeps an error from ending the process."""

NO_RAIL = (
    "NCCL lists its network interfaces once per process: a living process cannot leave one of them; start it anew with "
    "NCCL_SOCKET_IFNAME or NCCL_IB_HCA"
)

_REMOTE = ("ncclremoteerror", "remote process exited", "connection closed by remote", "connection reset", "peer")
_SILENCE = ("timeout", "timed out", "watchdog caught")
_ARGUMENTS = ("ncclinvalidusage", "ncclinvalidargument", "invalid usage", "invalid argument", "mismatch")


def prepare(environment: MutableMapping[str, str], version: tuple[int, int, int]) -> dict[str, str]:
    """Set what has to stand before the first group, for this NCCL version; gives what was set.

    The watchdog's settings are ours: with others an error would end the process. The ports' are only defaults.
    """
    wanted = dict(WATCHDOG)
    for name, since in ((PORT_FAILOVER, PORT_FAILOVER_SINCE), (PORT_RECOVERY, PORT_RECOVERY_SINCE)):
        if version >= since and name not in environment:
            wanted[name] = "1"
    changed = {name: value for name, value in wanted.items() if environment.get(name) != value}
    environment.update(changed)
    return changed


def version() -> tuple[int, int, int]:
    """Of the NCCL that this torch runs with. Raises BackendError where there is none."""
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
) -> InnerGroup:
    """A group whose communicators come to be with its first operation. Raises BackendError."""
    kind = _class()
    options = kind.Options()
    options._timeout = timeout
    try:
        backend = kind(store, rank, size, options)
    except (RuntimeError, ValueError) as error:
        who = ", ".join(map(str, members))
        raise BackendError(
            f"NCCL could not set up group {identity} of ranks {who} in epoch {epoch}: {error}; check that each of them "
            "has a GPU of its own."
        ) from error
    return InnerGroup(backend)


def abort(backends: Sequence[Any], reason: str) -> None:
    """End these groups together: aborted one after the other, they could wait for each other. Raises BackendError."""
    if not backends:
        return
    backends[0]._group_start()
    try:
        for backend in backends:
            backend.abort()
    except RuntimeError as error:
        raise BackendError(f"NCCL could not abort ({reason}): {error}; restart this rank.") from error
    finally:
        backends[0]._group_end()


def rebuild(
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
    """Another group: an aborted one stays aborted."""
    return make_inner(store, rank, size, timeout, epoch=epoch, identity=identity, members=members)


def switch_rail(backend: Any, name: str, in_use: bool) -> Switched:
    """There is nothing to ask: rails of a living process cannot be chosen."""
    return Switched(Switch.UNSUPPORTED, NO_RAIL)


def probe(backend: Any) -> Fault | None:
    """What the watchdog has noted of this group."""
    found = str(getattr(backend.get_error(), "name", "OTHER"))
    faults = {"SUCCESS": None, "TIMEOUT": Fault.SILENCE, "COMM_ERROR": Fault.PEER_GONE, "REMOTE_ERROR": Fault.PEER_GONE}
    return faults.get(found, Fault.OTHER)


def classify(error: str | BaseException) -> Fault:
    """Sorts by words; NCCL's own names of its errors stand in torch's texts."""
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
