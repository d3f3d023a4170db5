"""The messages that taskd itself exchanges with the other ranks: tensors on the CPU, over one group of all ranks.

It is the script's default group if that has a backend for the CPU. A script that asks for NCCL or HCCL alone gets a
guard around a CPU group beside it. torch does not know that guard, so it changes nothing that the script can ask for.
All ranks make it where they make their default group. It is made anew with every other group.

It does NOT choose the transport (cpu.py does) or decide when anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from taskd.comm.adapter import HOMES

_beside: Any = None  # the guard beside a default group that has no backend for the CPU


def default_group_begins(backends: Mapping[str, str], make_beside: Callable[[], Any]) -> None:
    """Note that a default group is made now, with these backends by type of device. `make_beside` makes a guard for the
    CPU, if it is needed."""
    global _beside
    guarded = any(name in HOMES for name in backends.values())
    _beside = make_beside() if guarded and "cpu" not in backends else None


def can_carry() -> bool:
    """Whether there is a group for the CPU."""
    if _beside is not None:
        return True
    return dist.is_initialized() and any(one.type == "cpu" for one in dist.group.WORLD._device_types)


def default_group_is_gone() -> None:
    """Let go of the guard beside it."""
    global _beside
    _beside = None


def all_gather(into: list[torch.Tensor], mine: torch.Tensor) -> None:
    """Gather a tensor of each rank."""
    if _beside is None:
        dist.all_gather(into, mine)
    else:
        _beside.allgather([into], [mine]).wait()


def meet() -> None:
    """Wait until all ranks are here."""
    if _beside is None:
        dist.all_reduce(torch.zeros(1, device="cpu"))
    else:
        _beside.allreduce([torch.zeros(1, device="cpu")]).wait()


def send(tensor: torch.Tensor, to: int, tag: int) -> Any:
    """Send a tensor to a rank; return torch's work."""
    return dist.isend(tensor, to, tag=tag) if _beside is None else _beside.send([tensor], to, tag)


def receive(tensor: torch.Tensor, source: int, tag: int) -> Any:
    """Receive a tensor from a rank; return torch's work."""
    return dist.irecv(tensor, source, tag=tag) if _beside is None else _beside.recv([tensor], source, tag)
