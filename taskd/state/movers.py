"""Finds what moves a training beside its modules and optimizers, and that nobody registered.

Schedulers of learning rates, gradient scalers and communication hooks carry numbers from step to step; a newcomer's
begin anew. Whether one that is not registered counts is seen by whether it moves: one that never does harms nobody.
It compares and names; coverage.py decides what that means for the job.
"""

from __future__ import annotations

import re
import weakref
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler

KINDS: tuple[type, ...] = (LRScheduler, torch.amp.GradScaler)
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Of a function, in what its scheduler tells."""
_DEPTH = 3
"""How far inside of what is registered others may stand: a sequence of schedulers keeps them in a list."""


@dataclass(slots=True)
class Mover:
    """One that lives and is not registered, and how it stood. It may be thrown away at any time."""

    item: weakref.ref[Any]
    stood: str

    @classmethod
    def of(cls, item: Any) -> Mover:
        return cls(weakref.ref(item), repr(item.state_dict()))

    def moved(self) -> str:
        """The name of its kind if it does not stand as it stood."""
        item = self.item()
        return type(item).__name__ if item is not None and repr(item.state_dict()) != self.stood else ""

    def again(self) -> Mover:
        """The same one as it stands now."""
        item = self.item()
        return self if item is None else Mover.of(item)


def digests(found: Iterable[Mover]) -> dict[str, int]:
    """How those of each kind stood, under the name of the kind."""
    kinds = dict[str, list[str]]()
    for mover in found:
        if (item := mover.item()) is not None:
            kinds.setdefault(f"a {type(item).__name__}", []).append(_ADDRESS.sub("", mover.stood))
    return {kind: zlib.crc32(repr(sorted(all_of_it)).encode()) for kind, all_of_it in kinds.items()}


def unregistered(living: Iterable[Any], registered: Iterable[Any]) -> list[Mover]:
    """The schedulers and scalers among the living, but for those that are registered or stand inside of what is."""
    known: set[int] = set()
    for item in registered:
        _gather(item, known, _DEPTH)
    return [Mover.of(item) for item in living if issubclass(type(item), KINDS) and id(item) not in known]


def hook_with_state(modules: Iterable[torch.nn.Module]) -> str:
    """The kind of state that a communication hook of one of these modules keeps, or nothing."""
    for module in modules:
        hooks = getattr(module, "_comm_hooks", ()) if isinstance(module, DistributedDataParallel) else ()
        for _, state in hooks:
            if state is not None and not isinstance(state, dist.ProcessGroup):
                return type(state).__name__
    return ""


def _gather(item: Any, known: set[int], depth: int) -> None:
    known.add(id(item))
    if depth == 0:
        return
    inner = item.values() if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else ()
    for one in (*inner, *getattr(item, "__dict__", {}).values()):
        if isinstance(one, (list, tuple, dict)) or hasattr(one, "__dict__"):
            _gather(one, known, depth - 1)
