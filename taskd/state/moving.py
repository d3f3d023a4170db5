"""Tracks parameters that move without an optimizer: perturbed for a second backward, swapped, averaged.

A step that is given up must leave them as it found them. Copying all parameters in every step would be too much. Code
that writes through `parameter.data` asks for `.data` first, and at that moment this parameter is copied. Code that
writes in another way raises the tensor's version. Such a parameter is copied from the next step on. What moved without
a copy is known to be lost, so that the step can be refused instead of being done again wrongly.

What it does NOT see: memory that is written through addresses (an array that shares it, a foreign kernel).
It decides nothing about the step.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch

from taskd.state.replica import Replica
from taskd.state.shards import is_shard, shard_of, version_of

_VERSION = attrgetter("_version")
_DATA: Any = torch.Tensor.data
"""torch's own `.data`, which is replaced while a loop runs."""


class Moving:
    """The registered parameters in the current step."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._all: list[torch.Tensor] = []
        self._split = False
        """Whether some of them are shards."""
        self._places: dict[int, int] = {}
        self._by_optimizer: dict[str, list[int]] = {}
        self._versions: list[int] = []
        self._now_known = False
        """Whether `_versions` are those at the end of the last step."""
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Copies of this step, by the parameter's number: its tensor, and what that contained."""
        self._room: dict[int, torch.Tensor] = {}
        self._stepped: set[int] = set()
        self._lost: set[int] = set()
        self.usual: set[int] = set()
        """Parameters that steps move without asking for `.data`. They are copied at a step's beginning."""
        self.late = False
        """Some parameters moved, or may have moved, after an update of this step."""

    def look(self) -> None:
        """Find the parameters. What happened so far was not part of a loop."""
        self._all = [tensor for _, tensor in self._replica.tensors() if isinstance(tensor, torch.nn.Parameter)]
        self._all = [one for one in self._all if not torch.nn.parameter.is_lazy(one)]
        self._split = any(map(is_shard, self._all))
        self._places = {id(tensor): at for at, tensor in enumerate(self._all)}
        self._by_optimizer = {
            name: [at for at in (self._places.get(id(one), -1) for one in _trained(optimizer)) if at >= 0]
            for name, optimizer in self._replica.optimizers.items()
        }
        self._now_known = False

    def forget(self) -> None:
        """Ignore what happens until the next step, because the script does not cause it."""
        self._now_known = False

    def begin(self) -> bool:
        """A step begins. Return whether parameters have moved since the step before."""
        before, self._versions = self._versions, self._now()
        moved = self._now_known and before != self._versions
        self._kept, self._stepped, self._lost, self.late = {}, set(), set(), False
        for at in self.usual:
            self._keep(at)
        return moved

    @property
    def lost(self) -> bool:
        """Whether a parameter has moved of which there is no copy."""
        return bool(self._lost)

    def touched(self, parameter: torch.Tensor) -> None:
        """Code asks for the contents of this parameter, and may write into them or replace them."""
        at = self._places.get(id(parameter))
        if at is None:
            return
        self.late |= bool(self._stepped)
        if at not in self._kept and at not in self._stepped and version_of(self._all[at]) == self._versions[at]:
            self._keep(at)

    def optimizer_begins(self) -> None:
        """Note what has moved before this optimizer steps."""
        self._compare()

    def optimizer_ended(self, name: str) -> None:
        """Note what this optimizer has moved."""
        self._stepped.update(self._by_optimizer.get(name, ()))
        self._versions = self._now()

    def end(self) -> bool:
        """The step ends, normally or not. Return whether parameters moved after an update."""
        self._compare()
        self._now_known = True
        return self.late

    def put_back(self) -> bool:
        """Set all back to what the step found, after optimizers are undone. Return False if something is lost."""
        for at, (place, contents) in self._kept.items():
            if _memory_of(self._all[at]).data_ptr() != place.data_ptr():
                if is_shard(self._all[at]):
                    return False  # another shard was put in its place, and its framework knows the old one
                _DATA.__set__(self._all[at], place)
            place.copy_(contents)
        return not self._lost

    def _now(self) -> list[int]:
        """Return the versions of all parameters. This is done several times in each step."""
        return list(map(version_of if self._split else _VERSION, self._all))

    def _compare(self) -> None:
        now = self._now()
        if now == self._versions:
            return
        for at, (new, old) in enumerate(zip(now, self._versions, strict=True)):
            if new != old:
                self.late |= bool(self._stepped)
                if at not in self._stepped and at not in self._kept:
                    self._lost.add(at)
                    self.usual.add(at)
        self._versions = now

    def _keep(self, at: int) -> None:
        place = _memory_of(self._all[at])
        room = self._room.get(at)
        if room is None or room.shape != place.shape or room.dtype != place.dtype or room.device != place.device:
            room = self._room[at] = torch.empty_like(place)
        room.copy_(place)
        self._kept[at] = place, room


def _trained(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]


def _memory_of(parameter: torch.Tensor) -> Any:
    return shard_of(parameter).detach() if is_shard(parameter) else _DATA.__get__(parameter)
