"""Inner groups over HCCL, through the calls that torch_npu has for faults: stop, restart, reinitialise, switch a NIC.

HCCL is stream-ordered: after an error the step is done again. It executes a failed operation again by itself, below
torch, where HCCL_OP_RETRY_ENABLE says so; `environment` hands our settings on. A rail that fails is borrowed from the
neighbour's NIC with `_comm_switch_nic(ranks, useBackup)`, and switched back with False: HCCL knows one backup per rank
and no names, so `out` means the backup and `back` the rank's own.

torch_npu is loaded when it is first needed, since importing it without CANN fails. Its calls are those of torch_npu
2.13; in which order they belong is not stated there. A switch that did nothing looks like one that worked, so it is
only `asked` until bytes have proved it (`adapter.judge`). It does NOT decide anything. None of this was run on an NPU.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from taskd.comm.adapter import Switch, Switched
from taskd.comm.cpu import Fault, InnerGroup
from taskd.config import RetryConfig
from taskd.errors import BackendError

STREAM_ORDERED = True

_LINK = ("hccl op retry failed", "error cqe", "link", "remote", "connection")
_SILENCE = ("timeout", "timed out", "hccl_exec_timeout", "hccl_connect_timeout")
_ARGUMENTS = ("inconsistent", "parameter", "mismatch", "invalid")


def environment(retry: RetryConfig) -> dict[str, str]:
    """Our retry settings in HCCL's own words, to be set before its first group."""
    enabled = ", ".join(f"{level}:{int(level in retry.levels)}" for level in ("L0", "L1", "L2"))
    params = f"MaxCnt:{retry.max_count}, HoldTime:{retry.hold_ms}, IntervalTime:{retry.interval_ms}"
    return {"HCCL_OP_RETRY_ENABLE": enabled, "HCCL_OP_RETRY_PARAMS": params}


def load() -> Any:
    """torch_npu. Raises BackendError where it, or CANN below it, is missing."""
    try:
        return importlib.import_module("torch_npu")
    except ImportError as error:
        raise BackendError(
            f"torch_npu cannot be loaded ({error}); install it and CANN, and source set_env.sh."
        ) from None


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
    kind = load()._C._distributed_c10d.ProcessGroupHCCL
    options = kind.Options()
    options._timeout = timeout
    try:
        return InnerGroup(kind(store, rank, size, options))
    except (RuntimeError, ValueError) as error:
        who = ", ".join(map(str, members))
        raise BackendError(
            f"HCCL could not set up group {identity} of ranks {who} in epoch {epoch}: {error}; check that each of them "
            "has an NPU of its own."
        ) from error


def abort(backends: Sequence[Any], reason: str) -> None:
    """Stop this process' device: what is queued on it is dropped, in every group. Raises BackendError."""
    npu = load().npu
    try:
        npu.stop_device(npu.current_device())
    except RuntimeError as error:
        raise BackendError(f"HCCL could not stop ({reason}): {error}; restart this rank.") from error


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
    """The same group anew: the device runs again, and this group's links are made again. Raises BackendError.

    `backend` is the torch group here: torch_npu takes no other handle.
    """
    try:
        _restart(epoch)
        load().distributed.distributed_c10d.reinit_process_group(group=backend, rebuild_link=True)
    except RuntimeError as error:
        raise BackendError(f"HCCL could not rebuild group {identity} in epoch {epoch}: {error}; restart it.") from error
    return InnerGroup(backend)


@functools.lru_cache(maxsize=1)
def _restart(epoch: int) -> None:
    """Once for all groups of an epoch: each restart clears what is under way."""
    npu = load().npu
    npu.restart_device(npu.current_device())


def switch_rail(backend: Any, name: str, in_use: bool) -> Switched:
    """This rank goes over its neighbour's NIC, or over its own again, in every group; the device is synchronised first.

    `backend` is the default group's, whose ranks are those of the job.
    """
    rank, use_backup = backend.rank(), not in_use
    try:
        answer = load().npu._comm_switch_nic([rank], [use_backup])
    except AttributeError:
        return Switched(Switch.UNSUPPORTED, "this torch_npu has no _comm_switch_nic")
    except RuntimeError as error:
        return Switched(Switch.REFUSED, f"HCCL does not switch the NIC of rank {rank} for rail {name}: {error}")
    if answer is False:
        return Switched(Switch.REFUSED, f"HCCL does not switch the NIC of rank {rank} for rail {name}")
    return Switched(Switch.ASKED, f"rank {rank} was asked to use its {'neighbour' if use_backup else 'own'} NIC")


def probe(backend: Any) -> Fault | None:
    """What the device knows of itself: an uncorrectable error in its memory."""
    npu = load().npu
    return Fault.OTHER if npu.check_uce_in_memory(npu.current_device()) else None


def classify(error: str | BaseException) -> Fault:
    """Sorts by words. An operation that HCCL has executed again in vain speaks of the link."""
    text = str(error).lower()
    if "hccl op retry failed" in text:
        return Fault.PEER_GONE
    if any(word in text for word in _SILENCE):
        return Fault.SILENCE
    if any(word in text for word in _ARGUMENTS):
        return Fault.ARGUMENTS
    return Fault.PEER_GONE if any(word in text for word in _LINK) else Fault.OTHER
