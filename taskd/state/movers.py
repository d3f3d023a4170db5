"""Finds unregistered objects that influence a training beside its modules and optimizers.

Learning rate schedulers, gradient scalers and communication hooks carry numbers from step to step. Those of a newcomer
start anew. An unregistered one matters only if it moves: one that never moves does no harm.
This module compares and names. coverage.py decides what that means for the job.
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
"""The address of a function, in the state that its scheduler gives."""
_DEPTH = 3
"""How deep inside registered objects others may be: a sequence of schedulers keeps them in a list."""


@dataclass(slots=True)
class Mover:
    """An existing object that is not registered, and its earlier state. The script may free it at any time."""

    item: weakref.ref[Any]
    stood: str

    @classmethod
    def of(cls, item: Any) -> Mover:
        return cls(weakref.ref(item), repr(item.state_dict()))

    def moved(self) -> str:
        """Return the name of its class if its state has changed, else an empty text."""
        item = self.item()
        return type(item).__name__ if item is not None and repr(item.state_dict()) != self.stood else ""

    def again(self) -> Mover:
        """Return the same object with its current state."""
        item = self.item()
        return self if item is None else Mover.of(item)


def digests(found: Iterable[Mover]) -> dict[str, int]:
    """Return a digest of the states of each class, under the name of the class."""
    kinds = dict[str, list[str]]()
    for mover in found:
        if (item := mover.item()) is not None:
            kinds.setdefault(f"a {type(item).__name__}", []).append(_ADDRESS.sub("", mover.stood))
    return {kind: zlib.crc32(repr(sorted(all_of_it)).encode()) for kind, all_of_it in kinds.items()}


def unregistered(living: Iterable[Any], registered: Iterable[Any]) -> list[Mover]:
    """Return the schedulers and scalers among the living that are neither registered nor inside registered ones."""
    known: set[int] = set()
    for item in registered:
        _gather(item, known, _DEPTH)
    return [Mover.of(item) for item in living if issubclass(type(item), KINDS) and id(item) not in known]


def hook_with_state(modules: Iterable[torch.nn.Module]) -> str:
    """Return the class of the state that a communication hook of these modules keeps, or an empty text."""
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
