"""Inner groups over HCCL, through the calls that torch_npu has for faults: stop, restart, reinitialise, switch a NIC.
See adapter.py.

HCCL is stream-ordered: after an error the step is done again. If HCCL_OP_RETRY_ENABLE says so, HCCL itself retries a
failed operation, below torch; `prepare` passes our settings on to it. When a rank's NIC fails, the rank uses its
neighbour's NIC instead, with `_comm_switch_nic(ranks, useBackup)`; False switches back. HCCL knows one backup per rank
and no names. So `out` means the backup NIC, and `back` means the rank's own NIC.

torch_npu is loaded when it is first needed, because its import fails without CANN. Its calls are those of torch_npu
2.13, which does not state their order. A switch that did nothing looks like one that worked. So it is only `asked`
until the bytes on both NICs have proved it (nic.py, `adapter.judge`). This module does NOT decide anything. None of
this was run on an NPU.
"""

from __future__ import annotations

import importlib
from collections.abc import MutableMapping, Sequence
from datetime import timedelta
from typing import Any

from taskd import log
from taskd.comm import counters, nic
from taskd.comm.adapter import Fault, InnerGroup, Switch, Switched, Traffic, judge
from taskd.config import Config
from taskd.errors import BackendError

STREAM_ORDERED = True

_LINK = ("hccl op retry failed", "error cqe", "link", "remote", "connection")
_SILENCE = ("timeout", "timed out", "hccl_exec_timeout", "hccl_connect_timeout")
_ARGUMENTS = ("inconsistent", "parameter", "mismatch", "invalid")

TRANSPORT = "hccl"
_logger = log.get(__name__)

OWN_NIC = nic.OWN
"""The name of the only rail that a rank can leave: its own NIC."""


class _Device:
    """The state of this process' only device."""

    def __init__(self) -> None:
        self.number: int | None = None  # noted when a group is made: other threads may have another current device
        self.restarted = -1  # the last epoch for which the device was restarted
        self.lent = False  # this rank was asked to use its neighbour's NIC
        self.counts: nic.Counts | None = None  # the bytes of both NICs, for the agent of this node


_device = _Device()


def prepare(environment: MutableMapping[str, str], settings: Config) -> dict[str, str]:
    """Pass our retry settings on as HCCL's own variables. If no retry setting was given, HCCL's defaults hold."""
    if not any(path.startswith("retry.") for path in settings.sources):
        return {}
    retry = settings.retry
    wanted = {
        "HCCL_OP_RETRY_ENABLE": ", ".join(f"{level}:{int(level in retry.levels)}" for level in ("L0", "L1", "L2")),
        "HCCL_OP_RETRY_PARAMS": (
            f"MaxCnt:{retry.max_count}, HoldTime:{retry.hold_ms}, IntervalTime:{retry.interval_ms}"
        ),
    }
    changed = {name: value for name, value in wanted.items() if environment.get(name) != value}
    environment.update(changed)
    return changed


def load() -> Any:
    """Import and return torch_npu. Raises BackendError if torch_npu or the CANN below it is missing."""
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
    options: Any = None,
) -> InnerGroup:
    """Make a group, whose first operation makes its communicators; `options` are those that torch gives for a new
    group. Raises BackendError."""
    found = load()
    kind = found._C._distributed_c10d.ProcessGroupHCCL
    wanted = kind.Options()
    wanted._timeout = timeout
    if options is not None:
        wanted.global_ranks_in_group, wanted.group_id = options.global_ranks_in_group, options.group_id
    _device.number = found.npu.current_device()
    try:
        made = InnerGroup(kind(store, rank, size, wanted))
        _show_rails()
        return made
    except (RuntimeError, ValueError) as error:
        who = ", ".join(map(str, members))
        raise BackendError(
            f"HCCL could not set up group {identity} of ranks {who} in epoch {epoch}: {error}; check that each of them "
            "has an NPU of its own."
        ) from error


def abort(guards: Sequence[Any], epoch: int, reason: str) -> None:
    """Stop this process' device, which drops its queued operations in every group. Raises BackendError."""
    try:
        code = load().npu.stop_device(_number())
    except RuntimeError as error:
        raise BackendError(f"HCCL could not stop ({reason}): {error}; restart this rank.") from error
    if code not in (None, 0):  # on a failure torch_npu returns 1 and does not raise; else 0 or None
        raise BackendError(f"HCCL could not stop ({reason}): stop_device gave {code}; restart this rank.")


def rebuild(guard: Any, store: Any, within: timedelta, *, epoch: int, options: Any = None) -> InnerGroup:
    """Make the same group anew: restart the device, and make this group's links again. A newcomer has no group yet, and
    makes one. Raises BackendError."""
    if guard.inner is None:
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
    found = load()
    try:
        if _device.restarted != epoch:  # once for all groups: each restart drops the operations under way
            found.npu.restart_device(_number())
            _device.restarted = epoch
        found.distributed.distributed_c10d.reinit_process_group(group=_group_of(guard), rebuild_link=True)
    except RuntimeError as error:
        raise BackendError(
            f"HCCL could not rebuild group {guard.identity} in epoch {epoch}: {error}; restart it."
        ) from error
    return InnerGroup(guard.inner)


def _number() -> int:
    """The number of this process' device."""
    return int(load().npu.current_device() if _device.number is None else _device.number)


def _group_of(guard: Any) -> Any:
    """Return torch's group around this guard: torch_npu takes no other handle."""
    import torch  # already loaded: it made the group

    for group in torch.distributed.distributed_c10d._world.pg_map:
        if any(group._get_backend(device) is guard for device in group._device_types):
            return group
    raise BackendError(f"torch has no group for {guard.identity} any more; do not destroy groups during a repair.")


def _show_rails() -> None:
    """Let this node's agent see the two NICs, once. If this fails, nobody can switch them, and all else goes on."""
    if _device.counts is not None:
        return
    try:
        _device.counts = nic.Counts()
    except OSError as error:
        _logger.warning("nobody sees the NICs of this process: %s", error)
        return
    if _device.counts.fd >= 0:
        counters.show(_device.counts.fd, TRANSPORT)


def _sent() -> Traffic:
    """Return what the two NICs have sent, and show it to the agent, too."""
    now = nic.traffic(_number())
    if _device.counts is not None:
        _device.counts.note(now)
    return now


def rails() -> Sequence[str]:
    """The name of this rank's NIC, once a group was made."""
    return () if _device.number is None else (OWN_NIC,)


def switch_rail(name: str, in_use: bool) -> Switched:
    """Let this rank use its neighbour's NIC, or its own again, in every group. The device is synchronised first.

    Call it on every rank that shall switch, between two steps.
    """
    if _device.number is None:
        return Switched(Switch.UNSUPPORTED, "this process has no group over HCCL yet")
    if in_use and not _device.lent:
        return Switched(Switch.ASKED)
    import torch  # already loaded: it made the group

    found = load()
    rank, use_backup = torch.distributed.get_rank(), not in_use
    try:
        answer = found.npu._comm_switch_nic([rank], [use_backup])
    except AttributeError:
        return Switched(Switch.UNSUPPORTED, "this torch_npu has no _comm_switch_nic")
    except RuntimeError as error:
        return Switched(Switch.REFUSED, f"HCCL does not switch the NIC of rank {rank} for rail {name}: {error}")
    if answer is False:
        return Switched(Switch.REFUSED, f"HCCL does not switch the NIC of rank {rank} for rail {name}")
    _device.lent = use_backup
    if _device.counts is not None:
        _device.counts.prove_anew()
    before = _sent()  # read after the switch: the driver is slow to answer, and what was sent earlier proves nothing
    words = "HCCL was asked to use " + ("its neighbour's NIC" if use_backup else "its own NIC")
    if len(before) < 2:
        return Switched(Switch.ASKED, f"{words}; {nic.TOOL} does not tell what the NICs carry, so nothing proves it")

    def proof() -> Switched:
        found = judge(name, in_use, before, _sent())
        if found.outcome in (Switch.MOVED, Switch.NO_OP):  # a no-op left the NIC as before: the next request switches
            _device.lent = use_backup == (found.outcome is Switch.MOVED)
        return found

    return Switched(Switch.ASKED, words, proof)


def probe(guard: Any) -> Fault | None:
    """Return a fault if the device knows of an uncorrectable error in its memory."""
    return Fault.OTHER if load().npu.check_uce_in_memory(_number()) else None


def classify(error: str | BaseException) -> Fault:
    """Sort an error by its words. If HCCL's retries of an operation failed, the link is at fault."""
    text = str(error).lower()
    if "hccl op retry failed" in text:
        return Fault.PEER_GONE
    if any(word in text for word in _SILENCE):
        return Fault.SILENCE
    if any(word in text for word in _ARGUMENTS):
        return Fault.ARGUMENTS
    return Fault.PEER_GONE if any(word in text for word in _LINK) else Fault.OTHER
